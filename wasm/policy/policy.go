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
	// retry is the delay after a failed attempt to make an instance.
	retry = time.Second
	// patience is the polling interval of takeSlot while its slot is busy.
	patience = 50 * time.Microsecond
	// lateTries is how often a call that timed out is repeated.
	lateTries = 3
)

// Policy is a module with the native policies that answer for it when it fails.
type Policy struct {
	config Config
	module [32]byte // its digest
	pages  uint32
	slots  []slot
	rests  bool // its instances run deferred work between calls; see runDeferred

	shut    atomic.Bool // the breaker is open, or Run has ended
	waiting atomic.Int32
	wake    chan struct{}
	refill  chan struct{}
	opened  chan struct{}

	faults   [host.NumCauses]atomic.Uint64
	starved  atomic.Uint64
	replaced atomic.Uint64
	fuel     struct{ last, most atomic.Int64 } // of recorded calls

	memories struct{ partition, refine, guard Memory } // for callers without a Memory of their own

	mu       sync.Mutex
	failures []time.Time // guarded by mu: when the last faults happened, at most Config.Failures
	open     bool        // guarded by mu
}

// New makes the instances and starts no goroutine. The error wraps a *host.Fault when
// the module caused it. Run frees the instances.
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

// Run replaces dead instances, and runs the deferred work of instances that need it
// (host.Instance.RunDeferred), until the context is done. From then on the native
// policies answer everything: Run waits for calls in progress, frees the instances and
// returns nil. It may be called once.
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

// runAllDeferred runs the deferred work that is due, one instance after the other, so
// that the others keep answering.
func (p *Policy) runAllDeferred() {
	for n := range p.slots {
		s := &p.slots[n]
		if !s.deferredDue.Load() {
			continue
		}
		p.takeSlot(s)
		switch {
		case s.instance.Dead() != nil: // replace makes a new one
			s.deferredDue.Store(false)
			p.release(s, empty)
		case !s.deferredDue.Load(): // a caller has run it meanwhile
			p.release(s, free)
		default:
			p.runDeferred(s)
		}
	}
}

// replace makes a new instance for every slot that needs one, and reports whether it
// succeeded. An instance that is replaced because of its age or memory keeps answering
// until then.
func (p *Policy) replace() bool {
	for n := range p.slots {
		s := &p.slots[n]
		if !s.replaceDue.Load() { // not the state, which may be busy for a moment
			continue
		}
		i, err := p.instance()
		if err == nil && s.late != nil {
			i, err = p.retryLate(i, s.late)
		}
		if err != nil {
			p.config.Logger.Warn("no new instance of a policy's module", "error", err)
			p.count(err)
			return false
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

// Warm replays frames on every instance, because the first calls of an instance take
// long. It also allocates the memory for records of frames of that size. It waits for
// calls in progress, and counts and records nothing. The error is a *host.Fault; an
// instance that times out is replaced without an error.
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
			p.releaseDead(s)
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

// recordFuel updates the fuel statistics with a recorded call.
func (p *Policy) recordFuel(fuel int64) {
	p.fuel.last.Store(fuel)
	for {
		most := p.fuel.most.Load()
		if fuel <= most || p.fuel.most.CompareAndSwap(most, fuel) {
			return
		}
	}
}

// count counts and logs a failure.
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
	if cause != host.TimedOut { // retryLate decides whether the module caused that
		p.countFault()
	}
}

func (p *Policy) log() *slog.Logger {
	sum := p.config.Module.SHA256()
	return p.config.Logger.With("module", fmt.Sprintf("%x", sum[:6]))
}

// Opened is closed when the breaker opens.
func (p *Policy) Opened() <-chan struct{} { return p.opened }

// Stats are the counts of a Policy since New.
type Stats struct {
	Calls    uint64                 // calls to the module
	Faults   [host.NumCauses]uint64 // failed calls, which the native policy answered, and failed attempts to make an instance, by host.Cause
	Starved  uint64                 // calls that timed out while descheduled (host.Fault.Starved), which the native policy answered, and such attempts to make an instance; not in Faults
	Replaced uint64                 // instances replaced
	Alive    int                    // instances that can answer now
	Open     bool                   // the breaker is open
	// Fuel is the fuel of the last recorded call, and the most that one consumed.
	Fuel struct{ Last, Max int64 }
}

// Stats returns the counts. It does not read all of them at the same instant.
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

// Records returns copies of the recorded calls that are not overwritten yet, oldest
// first for each instance. It waits for calls in progress.
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
