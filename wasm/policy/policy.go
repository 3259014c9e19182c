package policy

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
)

const (
	// retry is how long after an instance could not be made the next attempt is.
	retry = time.Second
	// patience is between two looks at a slot that is in use, for those who wait
	// for a certain one.
	patience = 50 * time.Microsecond
	// lateTries is how often a call that took too long is made again.
	lateTries = 3
)

// Policy is a module and the native policies beside it.
type Policy struct {
	config Config
	module [32]byte // its digest
	pages  uint32
	slots  []slot
	rests  bool // its instances rest between calls; see rest

	shut    atomic.Bool // the breaker is open, or Run has ended
	waiting atomic.Int32
	wake    chan struct{}
	refill  chan struct{}
	opened  chan struct{}

	faults   [host.NumCauses]atomic.Uint64
	starved  atomic.Uint64
	replaced atomic.Uint64
	fuel     struct{ last, most atomic.Int64 } // of recorded calls

	memories struct{ partition, refine, guard Memory } // of who brings none

	mu       sync.Mutex
	failures []time.Time // guarded by mu: the last ones, at most Config.Failures
	open     bool        // guarded by mu
}

// New makes the instances; it starts nothing. The error is a *host.Fault, wrapped,
// when the module is to blame. The instances are freed by Run.
func New(config Config) (*Policy, error) {
	config, err := config.filled()
	if err != nil {
		return nil, err
	}
	p := &Policy{
		config: config, module: config.Module.SHA256(), pages: config.Module.Report().MaxPages, slots: make([]slot, config.Instances),
		wake: make(chan struct{}, 1), refill: make(chan struct{}, 1), opened: make(chan struct{}),
	}
	for k := range abi.NumKinds {
		p.rests = p.rests || perRequest[k] && config.Module.Decides(k) && config.Module.HasDeferred()
	}
	for n := range p.slots {
		s := &p.slots[n]
		s.number, s.ring = uint64(n), make(ring, 0, config.Keep)
		if s.instance, err = p.instance(); err != nil {
			p.free()
			return nil, fmt.Errorf("policy: %w", err)
		}
	}
	return p, nil
}

// instance makes a configured instance.
func (p *Policy) instance() (*host.Instance, error) {
	i, err := p.config.Module.Instantiate()
	if err != nil {
		return nil, err
	}
	if err := i.Configure(abi.Call{}, p.config.Configuration); err != nil {
		i.Close()
		return nil, err
	}
	return i, nil
}

// Run replaces instances that died, and has those rest that need to between calls
// (host.Instance.Rest), until the context is done. Then the native
// policies answer everything; Run waits for calls in progress, frees the
// instances and returns nil. It may be called once.
func (p *Policy) Run(ctx context.Context) error {
	timer := time.NewTimer(retry)
	timer.Stop()
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			p.shut.Store(true)
			p.free()
			return nil
		case <-p.refill:
		case <-timer.C:
		}
		if !p.replace() {
			timer.Reset(retry)
		}
		p.runAllDeferred()
	}
}

// runAllDeferred has the instances rest that are to, one after the other, so that the
// others answer meanwhile.
func (p *Policy) runAllDeferred() {
	for n := range p.slots {
		s := &p.slots[n]
		if !s.deferredDue.Load() {
			continue
		}
		p.takeSlot(s)
		switch {
		case s.instance.Dead() != nil: // it waits to be replaced
			s.deferredDue.Store(false)
			p.release(s, empty)
		case !s.deferredDue.Load(): // who called was faster
			p.release(s, free)
		default:
			p.runDeferred(s)
		}
	}
}

// replace makes a new instance for every slot that needs one, and reports
// whether it could. A worn one goes on answering meanwhile.
func (p *Policy) replace() bool {
	for n := range p.slots {
		s := &p.slots[n]
		if !s.replaceDue.Load() { // its state may be busy for a moment
			continue
		}
		i, err := p.instance()
		if err != nil {
			p.config.Logger.Warn("no new instance of a policy's module", "error", err)
			p.count(err)
			return false
		}
		if s.late != nil {
			if i, err = p.retryLate(i, s.late); err != nil {
				p.config.Logger.Warn("no new instance of a policy's module", "error", err)
				p.count(err)
				return false
			}
		}
		p.takeSlot(s)
		s.instance.Close()
		s.instance, s.served, s.rested, s.late = i, 0, 0, nil
		s.replaceDue.Store(false)
		p.replaced.Add(1)
		p.release(s, free)
	}
	return true
}

// free closes all instances.
func (p *Policy) free() {
	for n := range p.slots {
		s := &p.slots[n]
		p.takeSlot(s)
		if s.instance != nil {
			s.instance.Close()
		}
		p.release(s, empty)
	}
}

// Warm has every instance answer frames of its kinds before a caller asks it: the
// first calls of an instance take long. It gives records of words as large as
// those their memory. It waits for calls in progress, and counts and records
// nothing. The error is a *host.Fault; an instance that took too long is replaced
// without one.
func (p *Policy) Warm(frames [][]byte) error {
	for n := range p.slots {
		s := &p.slots[n]
		p.takeSlot(s)
		var err error
		var r host.Record
		words, output := 0, 0
		for _, frame := range frames {
			if err = s.instance.Replay(frame, &r); err != nil {
				break
			}
			words, output = max(words, len(r.Frame)), max(output, len(r.Output))
		}
		if p.config.Every > 0 {
			s.ring.reserve(words, output)
		}
		if s.instance.Dead() == nil {
			p.release(s, free)
		} else {
			s.replaceDue.Store(true)
			p.release(s, empty)
			p.refillSoon()
		}
		if err != nil && host.CauseOf(err) != host.TimedOut {
			return err
		}
	}
	return nil
}

func (p *Policy) refillSoon() {
	select {
	case p.refill <- struct{}{}:
	default:
	}
}

// endFailed ends a call that the native policy will answer: it is counted and
// recorded, and the instance goes if it is dead.
func (p *Policy) endFailed(s *slot, k abi.Kind, err error, frame []byte) {
	cause := host.CauseOf(err)
	r := s.sampled
	if r == nil || len(r.Frame) == 0 {
		if r == nil {
			r = s.record()
		}
		*r = host.Record{Module: p.config.Module.SHA256(), Kind: k, Frame: frame}
		if cause != host.TooLarge {
			r.Fuel = s.instance.Fuel()
		}
	}
	r.Cause = cause
	s.trim(k, p.config.KeepBytes)
	p.recordFuel(r.Fuel)
	p.count(err)
	if cause == host.TimedOut {
		s.late = slices.Clone(r.Frame)
	}
	if s.instance.Dead() == nil {
		p.releaseAlive(s)
		return
	}
	s.replaceDue.Store(true)
	p.release(s, empty)
	p.refillSoon()
}

// recordFuel takes note of what a recorded call took.
func (p *Policy) recordFuel(fuel int64) {
	p.fuel.last.Store(fuel)
	for {
		most := p.fuel.most.Load()
		if fuel <= most || p.fuel.most.CompareAndSwap(most, fuel) {
			return
		}
	}
}

// count counts a failure.
func (p *Policy) count(err error) {
	cause := host.CauseOf(err)
	if host.Starved(err) {
		p.starved.Add(1)
		p.log().Debug("the machine did not run a policy's module in time; the native policy answers", "error", err)
		return
	}
	p.faults[cause].Add(1)
	if cause == host.TooLarge {
		return
	}
	p.log().Warn("a policy's module failed; the native policy answers", "error", err)
	if cause != host.TimedOut { // whose fault that is shows later
		p.countFault()
	}
}

func (p *Policy) log() *slog.Logger {
	sum := p.config.Module.SHA256()
	return p.config.Logger.With("module", fmt.Sprintf("%x", sum[:6]))
}

// retryLate makes a call again that was ended because its time was up, on a new
// instance, which it returns, or another one. A module that is slow is so again,
// and is blamed; one that is not was in a thread that the machine did not run, as
// it may be again now.
func (p *Policy) retryLate(i *host.Instance, frame []byte) (*host.Instance, error) {
	for try := 1; ; try++ {
		var r host.Record
		err := i.Replay(frame, &r)
		if i.Dead() == nil {
			return i, nil
		}
		i.Close()
		late := host.CauseOf(err) == host.TimedOut
		if host.Starved(err) {
			return p.instance()
		}
		if !late {
			p.count(err)
		} else if try == lateTries {
			p.log().Warn("a policy's module is slow", "error", err)
			p.countFault()
		}
		if i, err = p.instance(); err != nil || !late || try == lateTries {
			return i, err
		}
	}
}

// countFault reports a fault of the module, and opens the breaker when there are too
// many.
func (p *Policy) countFault() {
	p.config.Faulted()
	if p.config.Failures < 0 {
		return
	}
	now := p.config.Clock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open {
		return
	}
	if len(p.failures) == p.config.Failures {
		p.failures = slices.Delete(p.failures, 0, 1)
	}
	p.failures = append(p.failures, now)
	if len(p.failures) == p.config.Failures && now.Sub(p.failures[0]) <= p.config.Window {
		p.open = true
		p.shut.Store(true)
		p.wakeWaiting()
		close(p.opened)
		p.log().Error("the breaker is open: the native policy answers from now on", "failures", p.config.Failures, "window", p.config.Window)
	}
}

// Opened is closed when the breaker opens.
func (p *Policy) Opened() <-chan struct{} { return p.opened }

// Stats is what a Policy counts since New.
type Stats struct {
	Calls    uint64                 // made to the module
	Faults   [host.NumCauses]uint64 // of them, answered by the native policy, by host.Cause; and of new instances
	Starved  uint64                 // of Calls, answered by the native policy because the machine did not run the module (host.Fault.Starved): no faults; and new instances
	Replaced uint64                 // instances
	Alive    int                    // instances that answer, now
	Open     bool                   // the breaker is open
	// Fuel is what recorded calls burnt: the last one, and the one that burnt most.
	Fuel struct{ Last, Max int64 }
}

// Stats returns the counts. They are not of one instant.
func (p *Policy) Stats() Stats {
	st := Stats{Starved: p.starved.Load(), Replaced: p.replaced.Load()}
	for n := range p.slots {
		state := p.slots[n].state.Load()
		st.Calls += state >> 2
		if state&what != empty {
			st.Alive++
		}
	}
	for c := range st.Faults {
		st.Faults[c] = p.faults[c].Load()
	}
	st.Fuel.Last, st.Fuel.Max = p.fuel.last.Load(), p.fuel.most.Load()
	select {
	case <-p.opened:
		st.Open = true
	default:
	}
	return st
}

// Records returns what was recorded and not yet overwritten, oldest first for
// each instance. It waits for calls in progress; the caller may keep all of it.
func (p *Policy) Records() []host.Record {
	var all []host.Record
	for n := range p.slots {
		s := &p.slots[n]
		p.takeSlot(s)
		for i := range s.ring {
			r := s.ring[(s.next+i)%len(s.ring)]
			if dropped(&r) {
				continue
			}
			r.Frame, r.Output = slices.Clone(r.Frame), slices.Clone(r.Output)
			all = append(all, r)
		}
		as := uint64(free)
		if s.instance.Dead() != nil {
			as = empty
		}
		p.release(s, as)
	}
	return all
}
