package slothost

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/internal/loader"
	"github.com/cascadeinfer/cascade/wasm/internal/swap"
	"github.com/cascadeinfer/cascade/wasm/policy"
	"github.com/cascadeinfer/cascade/wasm/promotion"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

// Set is the slots of a host. Its methods are safe for concurrent use, before,
// during and after Run.
type Set struct {
	// Fixed after New.
	config Config
	watch  *host.Watchdog
	engine *host.Engine
	slots  [abi.NumKinds]*kindSlot // nil for kinds that the host does not decide
	err    error                   // why no slot takes modules
	wake   chan struct{}           // something in a slot has changed

	past map[string]history // as File was at first

	mu      sync.Mutex
	written string // what File holds
}

// kindSlot is the slot of one kind.
type kindSlot struct {
	// Fixed after New.
	kind   abi.Kind
	slot   *swap.Slot[loader.Policy]
	loader *loader.Loader

	// proven: the want has a module that the fleet runs. It is what guards look at.
	proven atomic.Bool

	scopesMu sync.Mutex
	scopes   map[string]*policy.Memory // guarded by scopesMu

	// Guarded by Set.mu.
	history history
	want    Want             // the last one, without the modules that were offered
	refused map[uint64]error // offers of that want
	offered map[uint64]promotion.Offer
	about   map[uint64]*about
}

// about is what is known of a generation besides its life.
type about struct {
	name, version string
	digest        sign.Digest
	mark          sign.Mark
	notAfter      int64         // of its statement
	told          time.Time     // when the log was last told of its end
	stats         *policy.Stats // once it is freed
}

// New returns slots that the native policies serve. The error names the bad
// field. A File that cannot be read is no error of New: see Err.
func New(config Config) (*Set, error) {
	config, err := config.complete()
	if err != nil {
		return nil, fmt.Errorf("slots: %w", err)
	}
	s := &Set{config: config, watch: host.NewWatchdog(), engine: host.NewEngine(), wake: make(chan struct{}, 1)}
	past, err := readHistory(config.File)
	if err != nil {
		s.err = fmt.Errorf("what modules were admitted before is not known, so that none are now and the native policies decide: "+
			"restore the file, or remove it to trust whatever is signed: %w", err)
		config.Logger.Error("policies are native", "err", s.err)
	}
	s.past = past
	start := config.Now()
	begin := policies.Micros(start.UnixMicro()) // rules read it as the time of day; it does not go back
	clock := func() policies.Micros { return begin + policies.Micros(config.Now().Sub(start)/time.Microsecond) }
	build := new(sync.Mutex) // one module at a time in this process: calls keep most of the machine
	for _, kind := range config.Kinds {
		k := &kindSlot{kind: kind, history: past[kind.String()].clone(), want: Want{Kind: kind}, about: map[uint64]*about{}, scopes: map[string]*policy.Memory{}, offered: map[uint64]promotion.Offer{}}
		s.slots[kind] = k
		every, instances := config.Every, config.Instances
		if !promotion.PerRequest(kind) {
			every, instances = min(every, 1), 1
		}
		k.loader, err = loader.New(loader.Config{Kind: kind, Native: config.Native, Ring: config.Ring, Limits: config.Limits, Engine: s.engine, Cache: config.Cache,
			CacheBytes: config.CacheBytes, CacheModules: config.CacheModules, Watch: s.watch, Every: every, Instances: instances, Clock: clock, Now: config.Now, Logger: config.Logger,
			Admit:   func(st sign.Statement) error { return s.admit(k, st) },
			InForce: k.inForce})
		if err != nil {
			return nil, fmt.Errorf("slots: %w", err)
		}
		machine := config.Gates[kind]
		if machine.Canary.Compared == 0 {
			machine.Canary.Compared = compared(kind, machine.Canary.Calls, every)
		}
		machine.Kind, machine.Floor, machine.Resume = kind, promotion.Generation(k.history.Mark.Generation), k.history.resume()
		k.slot, err = swap.New(swap.Config[loader.Policy]{Machine: machine, Native: policy.NewLinked(config.Native, every, 0, clock),
			Loader: keeper{s, k}, Tick: config.Tick, Build: build, Now: config.Now, Changed: s.changed, Logger: config.Logger})
		if err != nil {
			return nil, fmt.Errorf("slots: gates of %s: %w", kind, err)
		}
	}
	return s, nil
}

// quietFor is how long nothing has happened in the slots when the system gets back
// what it took to compile modules, which Go would keep for the next time: half of
// what a migrator with modules has. It is late, and once for all, because it stops
// calls for some microseconds.
const quietFor = 5 * time.Second

// Run builds, tries and frees modules until the context is done; then the native
// policies take over. The error says which calls had not returned, or what
// freeing a module said. It is called once.
func (s *Set) Run(ctx context.Context) error {
	watching, unwatch := context.WithCancel(context.WithoutCancel(ctx)) // until the last call is over
	var watch, group sync.WaitGroup
	watch.Go(func() { _ = s.watch.Run(watching) })
	errs := make([]error, len(s.config.Kinds))
	for i, kind := range s.config.Kinds {
		group.Go(func() { errs[i] = s.slots[kind].slot.Run(ctx) })
	}
	quiet, tidied := time.NewTimer(quietFor), uint64(0)
	defer quiet.Stop()
	look := time.NewTicker(lookForEnds)
	defer look.Stop()
	for done := false; !done; {
		select {
		case <-look.C:
			s.warn()
		case <-ctx.Done():
			done = true
		case <-s.wake:
			s.follow()
			quiet.Reset(quietFor)
		case <-quiet.C:
			if n := s.engine.Compiled(); n != tidied {
				tidied = n
				debug.FreeOSMemory()
			}
		}
	}
	group.Wait()
	s.mu.Lock()
	s.remember() // what became active last
	s.mu.Unlock()
	unwatch()
	watch.Wait()
	return errors.Join(errs...)
}

// changed is called under a slot's lock.
func (s *Set) changed() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// follow takes note of what became active, and goes on with wants that waited.
func (s *Set) follow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, kind := range s.config.Kinds {
		if err := s.slots[kind].reconcile(); err != nil {
			s.config.Logger.Warn("policy refused", "kind", kind.String(), "err", err)
		}
	}
	s.remember()
	s.warnLocked()
}

// remember writes down what is active, and what was before. The lock is held.
func (s *Set) remember() {
	for _, kind := range s.config.Kinds {
		s.slots[kind].look()
	}
	if err := s.save(); err != nil {
		s.config.Logger.Error("what policies ran is not written down", "err", err)
	}
}

// look takes note of what is active, and what was before. The set's lock is held.
func (k *kindSlot) look() {
	lives := k.slot.Status().Lives
	for _, state := range []promotion.State{promotion.IsPrevious, promotion.IsActive} {
		for _, l := range lives {
			if a := k.about[uint64(l.Generation)]; l.State == state && a != nil {
				k.history.ran(a.mark)
			}
		}
	}
}

// save writes the history if it has changed. The lock is held.
func (s *Set) save() error {
	if s.config.File == "" || s.err != nil {
		return nil
	}
	all := map[string]history{}
	maps.Copy(all, s.past) // also of kinds that the host does not decide now
	for _, kind := range s.config.Kinds {
		if h := s.slots[kind].history; h.Mark != (sign.Mark{}) || len(h.RolledBack) > 0 {
			all[kind.String()] = h
		}
	}
	b, err := encodeHistory(all)
	if err != nil || string(b) == s.written {
		return err
	}
	if err := writeHistory(s.config.File, b); err != nil {
		return err
	}
	s.written = string(b)
	return nil
}

// Err says why no slot takes modules, with what to do about it, nil when they do:
// File is there and cannot be read, say.
func (s *Set) Err() error { return s.err }

// admit is the loader's last question before a module is loaded: is its statement
// one of the wanted?
func (s *Set) admit(k *kindSlot, st sign.Statement) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !k.history.knows(sign.MarkOf(st)) {
		return fmt.Errorf("%s: generation %d is not what was wanted", st.Name, st.Generation)
	}
	return nil
}

// compared is how many answers are to be compared in a step of a canary: half of
// what will be recorded while as many calls come as the step is to last.
func compared(k abi.Kind, calls uint64, every int) uint64 {
	switch {
	case every == 0: // nothing is recorded
		return 0
	case calls == 0 && promotion.PerRequest(k):
		calls = promotion.DefaultCanaryCalls
	}
	return max(1, calls/uint64(2*every))
}

// inForce lends the active policy, whatever is in canary.
func (k *kindSlot) inForce(use func(promotion.Generation, loader.Policy)) {
	l := k.slot.EnterScope("")
	defer l.Leave()
	use(l.Generation, l.Policy)
}

// Records returns the recorded calls of the policy that decides a kind, the
// native one included; nil for a kind that the host has no slot for.
func (s *Set) Records(kind abi.Kind) []host.Record {
	if kind >= abi.NumKinds || s.slots[kind] == nil {
		return nil
	}
	var records []host.Record
	s.slots[kind].inForce(func(_ promotion.Generation, p loader.Policy) { records = p.Records() })
	return records
}

// keeper is a slot's loader that keeps what a module counted when it is freed.
type keeper struct {
	set *Set
	k   *kindSlot
}

func (l keeper) Verify(ctx context.Context, c swap.Candidate) error {
	return l.k.loader.Verify(ctx, c)
}

func (l keeper) Compile(ctx context.Context, c swap.Candidate, fault func()) (swap.Module[loader.Policy], error) {
	m, err := l.k.loader.Compile(ctx, c, fault)
	if err != nil {
		return m, err
	}
	free, p, g := m.Close, m.Policy.(*policy.Policy), uint64(c.Generation) // not c: it has the module's bytes
	m.Close = func() error {
		err := free()
		stats := p.Stats()
		l.set.mu.Lock()
		defer l.set.mu.Unlock()
		if a := l.k.about[g]; a != nil {
			a.stats = &stats
		}
		return err
	}
	return m, nil
}
