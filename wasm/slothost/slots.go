package slothost

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"runtime/debug"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/internal/wakeup"
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

	// writing is held while File is written, however long that takes.
	writing sync.Mutex
	written string // guarded by writing: the content of File
	failing bool   // guarded by writing: it could not be written

	mu      sync.Mutex                  // taken before that of a slot
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
	if b, err := encodeHistory(past); err == nil {
		s.written = string(b)
	}
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
	// File is written beside the rest, which goes on and ends while the disk hangs.
	due, recorded := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(recorded)
		for range due {
			s.record()
		}
	}()
	for done := false; !done; {
		select {
		case <-retry.C:
			wakeup.Send(due)
		case <-ctx.Done():
			done = true
		case <-s.wake:
			wakeup.Send(due)
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
	wakeup.Send(due) // modules that became active last
	close(due)
	select {
	case <-recorded:
	case <-time.After(lastWrite):
		errs = append(errs, fmt.Errorf("%s: the admitted policy modules could not be written within %v", s.config.File, lastWrite))
	}
	unwatch()
	watch.Wait()
	return errors.Join(errs...)
}

// lastWrite is how long the end of Run waits for File.
const lastWrite = 2 * time.Second

// changed wakes Run.
func (s *Slots) changed() { wakeup.Send(s.wake) }

// record writes what may run after a restart, and then puts the specs in force that wait for
// that. A host that crashes therefore knows what was offered to it.
func (s *Slots) record() {
	s.writing.Lock()
	defer s.writing.Unlock()
	all := map[string]history{}
	maps.Copy(all, s.past) // includes kinds that the host does not decide now
	var next [abi.NumKinds]*desired
	for _, kind := range s.config.Kinds {
		var h history
		if h, next[kind] = s.slots[kind].future(); h.Mark != (sign.Mark{}) || len(h.RolledBack) > 0 {
			all[kind.String()] = h
		}
	}
	err := s.write(all)
	for _, kind := range s.config.Kinds {
		if next[kind] != nil {
			s.slots[kind].apply(next[kind], err)
		}
	}
}

// future returns the history with the modules that ran since, and with what the next spec
// admits, and that spec; nil if there is none.
func (s *slot) future() (history, *desired) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recordRan()
	if s.next == nil {
		return s.history.clone(), nil
	}
	s.next.history.follow(s.history)
	return s.next.history.clone(), s.next
}

// apply puts the next spec in force, unless it could not be written or a newer one has come
// meanwhile.
func (s *slot) apply(next *desired, unwritten error) {
	var refused error
	s.step(func(m *machine) {
		if s.unwritten = unwritten; unwritten != nil || s.next != next {
			return
		}
		s.next = nil
		next.history.follow(s.history)
		s.history = next.history
		s.stable.Store(next.stable)
		refused = m.want(next.offers)
	})
	if refused != nil {
		s.refuse(fmt.Errorf("slot %s: %w", s.kind, refused))
	}
}

// recordRan records the previous and the active module in the history. The lock is held.
func (s *slot) recordRan() {
	for _, c := range []*generation{s.machine.previous, s.machine.active} {
		if c != nil {
			s.history.recordRan(sign.MarkOf(c.offer.statement))
		}
	}
}

// write writes the histories if they have changed, and logs the first failure. The lock of
// writing is held.
func (s *Slots) write(all map[string]history) error {
	if s.config.File == "" || s.err != nil {
		return nil
	}
	b, err := encodeHistory(all)
	if err == nil && string(b) == s.written {
		return nil
	}
	if err == nil {
		err = writeHistory(s.config.File, b)
	}
	if err == nil {
		s.written, s.failing = string(b), false
		return nil
	}
	if at := new(fs.PathError); errors.As(err, &at) { // of a temporary file, another one each time
		err = fmt.Errorf("%s: %w", s.config.File, at.Err)
	}
	if !s.failing {
		s.failing = true
		s.config.Logger.Error("saving the admitted policy modules failed, retrying", "error", err)
	}
	return err
}

// Err returns why no slot accepts modules, and what to do about it; nil when they do.
// The reason is a File that exists and cannot be read.
func (s *Slots) Err() error { return s.err }

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
