package slothost

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

// Slots are the policy slots of a host. Its methods are safe for concurrent use,
// before, during and after Run.
type Slots struct {
	// Fixed after New.
	config Config
	watch  *host.Watchdog
	engine *host.Engine
	slots  [abi.NumKinds]*slot // nil for kinds that the host does not decide
	err    error               // why no slot accepts modules
	wake   chan struct{}       // the state of a slot has changed

	past map[string]history // as read from File by New

	// building is held while a module is verified, compiled or warmed: one build at a time
	// in this process leaves processors for calls.
	building sync.Mutex

	mu      sync.Mutex
	written string                      // guarded by mu: the content of File
	fetches map[lifecycle.Digest]*fetch // guarded by mu: those in progress
}

// New returns slots that are served by the native policies. The error names the bad
// field. A File that cannot be read is not an error of New: see Err.
func New(config Config) (*Slots, error) {
	config, err := config.complete()
	if err != nil {
		return nil, fmt.Errorf("slots: %w", err)
	}
	s := &Slots{config: config, watch: host.NewWatchdog(), engine: host.NewEngine(), wake: make(chan struct{}, 1),
		fetches: map[lifecycle.Digest]*fetch{}}
	past, err := readHistory(config.File)
	if err != nil {
		s.err = fmt.Errorf("read the admitted modules: %w: restore the file, or remove it to admit any signed module, "+
			"and restart; until then the native policies decide", err)
		config.Logger.Error("policy modules disabled", "err", s.err)
	}
	s.past = past
	start := config.Now()
	begin := policies.Micros(start.UnixMicro()) // modules read the time of day; it does not go back
	clock := func() policies.Micros { return begin + policies.Micros(config.Now().Sub(start)/time.Microsecond) }
	for _, kind := range config.Kinds {
		if s.slots[kind], err = newSlot(s, kind, past[kind.String()].clone(), clock); err != nil {
			return nil, fmt.Errorf("slots: %w", err)
		}
	}
	return s, nil
}

// quietFor is how long the slots must be unchanged before the memory that compiling
// modules took is returned to the operating system; Go would keep it, half of the
// memory of a migrator with modules. It is done late, and once for several modules,
// because it stops calls for some microseconds.
const quietFor = 5 * time.Second

// Run fetches, builds, tries and frees modules until the context is done; then the native
// policies take over. The error is about modules that could not be freed. It is called
// once.
func (s *Slots) Run(ctx context.Context) error {
	watching, unwatch := context.WithCancel(context.WithoutCancel(ctx)) // until the last call has returned
	var watch, group sync.WaitGroup
	watch.Go(func() { _ = s.watch.Run(watching) })
	errs := make([]error, len(s.config.Kinds))
	for i, kind := range s.config.Kinds {
		group.Go(func() { errs[i] = s.slots[kind].run(ctx) })
	}
	quiet, trimmed := time.NewTimer(quietFor), uint64(0)
	defer quiet.Stop()
	retry := time.NewTicker(retryAfter)
	defer retry.Stop()
	for done := false; !done; {
		select {
		case <-retry.C:
			s.retryWrites()
		case <-ctx.Done():
			done = true
		case <-s.wake:
			s.reconcile()
			s.fetchMissing(ctx, &group)
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
func (k *slot) recordRan() {
	modules := k.state().Modules
	for _, phase := range []lifecycle.Phase{lifecycle.Previous, lifecycle.Active} {
		for _, m := range modules {
			if a := k.about[m.Generation]; m.Phase == phase && a != nil {
				k.history.recordRan(sign.MarkOf(a.statement))
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

// admit reports an error unless a statement belongs to the desired state. It is
// checked again before a module is loaded.
func (s *Slots) admit(k *slot, st sign.Statement) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !k.history.knows(sign.MarkOf(st)) {
		return fmt.Errorf("%s: generation %d is not part of the desired state", st.Name, st.Generation)
	}
	return nil
}

// Records returns the recorded calls of the active policy of a kind, native or not;
// nil for a kind that the host has no slot for.
func (s *Slots) Records(kind abi.Kind) []host.Record {
	if kind >= abi.NumKinds || s.slots[kind] == nil {
		return nil
	}
	k := s.slots[kind]
	k.mu.Lock()
	defer k.mu.Unlock()
	from := k.own
	if k.active != nil {
		from = k.active.calls
	}
	all, _ := from.since(0)
	return all
}
