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
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/internal/loader"
	"github.com/cascadeinfer/cascade/wasm/internal/swap"
	"github.com/cascadeinfer/cascade/wasm/policy"
	"github.com/cascadeinfer/cascade/wasm/promotion"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

// Slots are the policy slots of a host. Its methods are safe for concurrent use,
// before, during and after Run.
type Slots struct {
	// Fixed after New.
	config Config
	watch  *host.Watchdog
	engine *host.Engine
	slots  [abi.NumKinds]*kindSlot // nil for kinds that the host does not decide
	err    error                   // why no slot accepts modules
	wake   chan struct{}           // the state of a slot has changed

	past map[string]history // as read from File by New

	mu      sync.Mutex
	written string // the content of File
}

// kindSlot is the slot of one kind.
type kindSlot struct {
	// Fixed after New.
	kind   abi.Kind
	slot   *swap.Slot[loader.Policy]
	loader *loader.Loader

	// stable reports whether the desired state has a stable module. Guards read it.
	stable atomic.Bool

	scopesMu sync.Mutex
	scopes   map[string]*policy.Memory // guarded by scopesMu

	// Guarded by Slots.mu.
	history history
	spec    lifecycle.SlotSpec             // the last one applied, without the modules that were offered
	refused map[lifecycle.Generation]error // offers of that spec
	offered map[lifecycle.Generation]promotion.Offer
	about   map[lifecycle.Generation]*about
}

// about is what is known of a generation besides its phase.
type about struct {
	name, version string
	digest        lifecycle.Digest
	mark          sign.Mark
	notAfter      int64         // of its statement, in Unix seconds
	warned        time.Time     // of its expiry in the log
	stats         *policy.Stats // once it is freed
}

// New returns slots that are served by the native policies. The error names the bad
// field. A File that cannot be read is not an error of New: see Err.
func New(config Config) (*Slots, error) {
	config, err := config.complete()
	if err != nil {
		return nil, fmt.Errorf("slots: %w", err)
	}
	s := &Slots{config: config, watch: host.NewWatchdog(), engine: host.NewEngine(), wake: make(chan struct{}, 1)}
	past, err := readHistory(config.File)
	if err != nil {
		s.err = fmt.Errorf("read the admitted modules: %w: restore the file, or remove it to admit any signed module, and restart; until then the native policies decide", err)
		config.Logger.Error("policy modules disabled", "err", s.err)
	}
	s.past = past
	start := config.Now()
	begin := policies.Micros(start.UnixMicro()) // modules read the time of day; it does not go back
	clock := func() policies.Micros { return begin + policies.Micros(config.Now().Sub(start)/time.Microsecond) }
	build := new(sync.Mutex) // one build at a time in this process leaves processors for calls
	for _, kind := range config.Kinds {
		k := &kindSlot{kind: kind, history: past[kind.String()].clone(), spec: lifecycle.SlotSpec{Kind: slotKind(kind)}, about: map[lifecycle.Generation]*about{},
			scopes: map[string]*policy.Memory{}, offered: map[lifecycle.Generation]promotion.Offer{}}
		s.slots[kind] = k
		every, instances := config.Every, config.Instances
		if !slotKind(kind).PerRequest() {
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
		machine.Kind, machine.Floor, machine.Resume = slotKind(kind), k.history.Mark.Generation, k.history.resume()
		k.slot, err = swap.New(swap.Config[loader.Policy]{Machine: machine, Native: policy.NewNativeRecorder(config.Native, every, 0, clock),
			Loader: statsLoader{s, k}, Tick: config.Tick, Build: build, Now: config.Now, Changed: s.changed, Logger: config.Logger})
		if err != nil {
			return nil, fmt.Errorf("slots: gates of %s: %w", kind, err)
		}
	}
	return s, nil
}

// quietFor is how long the slots must be unchanged before the memory that compiling
// modules took is returned to the operating system; Go would keep it, half of the
// memory of a migrator with modules. It is done late, and once for several modules,
// because it stops calls for some microseconds.
const quietFor = 5 * time.Second

// Run builds, tries and frees modules until the context is done; then the native
// policies take over. The error is about calls that did not return, or modules that
// could not be freed. It is called once.
func (s *Slots) Run(ctx context.Context) error {
	watching, unwatch := context.WithCancel(context.WithoutCancel(ctx)) // until the last call has returned
	var watch, group sync.WaitGroup
	watch.Go(func() { _ = s.watch.Run(watching) })
	errs := make([]error, len(s.config.Kinds))
	for i, kind := range s.config.Kinds {
		group.Go(func() { errs[i] = s.slots[kind].slot.Run(ctx) })
	}
	quiet, trimmed := time.NewTimer(quietFor), uint64(0)
	defer quiet.Stop()
	expiry := time.NewTicker(checkExpiryEvery)
	defer expiry.Stop()
	for done := false; !done; {
		select {
		case <-expiry.C:
			s.warnExpiring()
		case <-ctx.Done():
			done = true
		case <-s.wake:
			s.reconcile()
			quiet.Reset(quietFor)
		case <-quiet.C:
			if n := s.engine.Compiled(); n != trimmed {
				trimmed = n
				debug.FreeOSMemory()
			}
		}
	}
	group.Wait()
	s.mu.Lock()
	s.saveRan() // modules that became active last
	s.mu.Unlock()
	unwatch()
	watch.Wait()
	return errors.Join(errs...)
}

// changed is called under a slot's lock.
func (s *Slots) changed() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// reconcile records what became active, and offers what waited for it.
func (s *Slots) reconcile() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, kind := range s.config.Kinds {
		if err := s.slots[kind].reconcile(); err != nil {
			s.config.Logger.Warn("policy module refused", "kind", kind.String(), "err", err)
		}
	}
	s.saveRan()
	s.warnExpiringLocked()
}

// saveRan records the active and previous modules, and saves that. The lock is held.
func (s *Slots) saveRan() {
	for _, kind := range s.config.Kinds {
		s.slots[kind].recordRan()
	}
	if err := s.save(); err != nil {
		s.config.Logger.Error("saving the policy modules that ran failed", "err", err)
	}
}

// recordRan records the active and the previous module in the history. The lock of
// Slots is held.
func (k *kindSlot) recordRan() {
	modules := k.slot.Status().Modules
	for _, phase := range []lifecycle.Phase{lifecycle.Previous, lifecycle.Active} {
		for _, m := range modules {
			if a := k.about[m.Generation]; m.Phase == phase && a != nil {
				k.history.recordRan(a.mark)
			}
		}
	}
}

// save writes the history if it has changed. The lock is held.
func (s *Slots) save() error {
	if s.config.File == "" || s.err != nil {
		return nil
	}
	all := map[string]history{}
	maps.Copy(all, s.past) // includes kinds that the host does not decide now
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

// Err returns why no slot accepts modules, and what to do about it; nil when they do.
// The reason is a File that exists and cannot be read.
func (s *Slots) Err() error { return s.err }

// admit reports an error unless a statement belongs to the desired state. The loader
// calls it before it loads a module.
func (s *Slots) admit(k *kindSlot, st sign.Statement) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !k.history.knows(sign.MarkOf(st)) {
		return fmt.Errorf("%s: generation %d is not part of the desired state", st.Name, st.Generation)
	}
	return nil
}

// compared returns how many answers must be compared in a step of a canary: half of
// those that will be recorded while the step gets the calls that its gate asks for.
func compared(k abi.Kind, calls uint64, every int) uint64 {
	switch {
	case every == 0: // nothing is recorded
		return 0
	case calls == 0 && slotKind(k).PerRequest():
		calls = promotion.DefaultCanaryCalls
	}
	return max(1, calls/uint64(2*every))
}

// inForce calls use with the active policy, whatever is in canary.
func (k *kindSlot) inForce(use func(lifecycle.Generation, loader.Policy)) {
	l := k.slot.EnterScope("")
	defer l.Leave()
	use(l.Generation, l.Policy)
}

// Records returns the recorded calls of the active policy of a kind, native or not;
// nil for a kind that the host has no slot for.
func (s *Slots) Records(kind abi.Kind) []host.Record {
	if kind >= abi.NumKinds || s.slots[kind] == nil {
		return nil
	}
	var records []host.Record
	s.slots[kind].inForce(func(_ lifecycle.Generation, p loader.Policy) { records = p.Records() })
	return records
}

// statsLoader is a slot's loader that keeps the counters of modules that are freed.
type statsLoader struct {
	slots *Slots
	k     *kindSlot
}

func (l statsLoader) Verify(ctx context.Context, c swap.Candidate) error {
	return l.k.loader.Verify(ctx, c)
}

func (l statsLoader) Compile(ctx context.Context, c swap.Candidate, fault func()) (swap.Module[loader.Policy], error) {
	m, err := l.k.loader.Compile(ctx, c, fault)
	if err != nil {
		return m, err
	}
	free, p, g := m.Close, m.Policy.(*policy.Policy), c.Generation // not c, which has the module's bytes
	m.Close = func() error {
		err := free()
		stats := p.Stats()
		l.slots.mu.Lock()
		defer l.slots.mu.Unlock()
		if a := l.k.about[g]; a != nil {
			a.stats = &stats
		}
		return err
	}
	return m, nil
}
