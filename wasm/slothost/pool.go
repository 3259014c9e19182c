package slothost

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/internal/wakeup"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// retry is the delay after a failed attempt to make an instance.
const retry = time.Second

// A healthy instance is replaced after mostServed calls or when it holds
// mostMemory16/16 of the module's memory limit, checked every lookEvery calls: slow
// leaks of a guest's allocator must not become faults.
const (
	mostServed   = 10_000_000
	lookEvery    = 4096
	mostMemory16 = 15
)

// An instance of a module that decides per request runs its deferred work between calls,
// every restEvery calls: otherwise the guest would do it in the middle of a call, which
// has no fuel for it. While an instance is being made and no other one is free, it waits for
// up to restLate calls. More than restFuel ticks, some 10 ms, are a fault.
const (
	restEvery = 500
	restLate  = 1000
	restFuel  = 5_000_000
)

// instance is an instance in a pool.
type instance struct {
	*host.Instance
	served, rested uint64 // calls, and those before it last ran deferred work
	worn           bool   // to be replaced
	record         host.Record
}

// pool holds the instances of a module that answer calls. A call takes one, and waits only
// while all are busy. Module.keep makes new ones in the place of those that died or are worn;
// only the worn ones count as busy meanwhile.
type pool struct {
	rests bool          // instances run deferred work between calls
	pages uint32        // the module's memory limit
	wake  chan struct{} // there is work for keep

	mu      sync.Mutex // guards the rest
	freed   sync.Cond  // an instance was freed, or the last one died
	free    []*instance
	busy    int         // instances that answer calls, or that keep is to see
	calls   uint64      // that were given to an instance
	dead    int         // instances to be made
	resting []*instance // worn, or to run deferred work; busy
	late    [][]byte    // frames of calls that timed out
}

// take returns an instance for a call and the call's number, nil when no instance is left.
func (p *pool) take() (*instance, uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.free) == 0 {
		if p.busy == 0 {
			return nil, 0
		}
		p.freed.Wait()
	}
	i := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.busy++
	p.calls++
	return i, p.calls
}

// give gives back an instance after a call. A dead one is closed; one that is worn or has
// deferred work to do is free once keep has seen to it.
func (p *pool) give(i *instance) {
	i.served++
	if i.served%lookEvery == 0 {
		now, _ := i.Memory()
		i.worn = i.served >= mostServed || uint64(now)*16 > uint64(p.pages)<<16*mostMemory16
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	every := uint64(restEvery)
	if p.dead > 0 && len(p.free) == 0 {
		every = restLate // keep is busy, and calls would wait for it
	}
	switch {
	case i.Dead() != nil:
		p.retire(i)
	case i.worn || p.rests && i.served-i.rested >= every:
		p.resting = append(p.resting, i)
		p.wakeKeeper()
	default:
		p.release(i)
	}
}

// release makes a busy instance free. The lock is held.
func (p *pool) release(i *instance) {
	p.busy--
	p.free = append(p.free, i)
	p.freed.Signal()
}

// retire closes a busy instance. The lock is held.
func (p *pool) retire(i *instance) {
	p.busy--
	i.Close()
	p.dead++
	p.wakeKeeper()
	if p.busy == 0 && len(p.free) == 0 {
		p.freed.Broadcast() // the native policy answers
	}
}

// wakeKeeper wakes Module.keep.
func (p *pool) wakeKeeper() { wakeup.Send(p.wake) }

// restingInstance returns an instance that is to run its deferred work; nil when none is.
func (p *pool) restingInstance() *instance {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.resting) == 0 {
		return nil
	}
	i := p.resting[0]
	p.resting = slices.Delete(p.resting, 0, 1)
	return i
}

// wanted reports whether an instance has died and is to be made anew, and which late call it
// is to repeat first.
func (p *pool) wanted() (any bool, late []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead > 0 && len(p.late) > 0 {
		late = p.late[0]
	}
	return p.dead > 0, late
}

// insert makes a new instance free, in the place of one that died.
func (p *pool) insert(i *host.Instance, repeated bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if repeated {
		p.late = slices.Delete(p.late, 0, 1)
	}
	p.dead--
	p.free = append(p.free, &instance{Instance: i})
	p.freed.Signal()
}

// close closes all instances, which must be free.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, i := range append(p.free, p.resting...) {
		i.Close()
	}
	p.free, p.resting = nil, nil
}

// newInstance makes a configured instance.
func (m *module) newInstance() (*host.Instance, error) {
	i, err := m.host.Instantiate()
	if err != nil {
		return nil, err
	}
	if err := i.Configure(abi.Call{}, m.configuration); err != nil {
		i.Close()
		return nil, err
	}
	return i, nil
}

// keep replaces the instances of the module that died or are worn, and runs the deferred
// work of those that have some, until the context is done.
func (m *module) keep(ctx context.Context) {
	timer := time.NewTimer(retry)
	timer.Stop()
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.pool.wake:
		case <-timer.C:
		}
		for i := m.pool.restingInstance(); i != nil; i = m.pool.restingInstance() {
			m.rest(i)
		}
		for ctx.Err() == nil {
			any, err := m.refill()
			if err != nil {
				m.log.Warn("no new instance of a policy's module", "error", err)
				m.count(err)
				timer.Reset(retry)
			}
			if err != nil || !any {
				break
			}
		}
	}
}

// rest replaces a worn instance, or runs the deferred work of another one.
func (m *module) rest(i *instance) {
	var err error
	if i.worn {
		var next *host.Instance
		if next, err = m.newInstance(); err == nil {
			i.Close()
			i.Instance, i.served = next, 0
		}
		i.worn = false
	} else if err = i.RunDeferred(); err == nil && i.Fuel() > restFuel {
		m.log.Warn("a policy's module rests for too long", "ticks", i.Fuel(), "most", restFuel)
		m.slot.fault(m.generation, fmt.Errorf("deferred work of %d ticks: at most %d are allowed", i.Fuel(), restFuel))
	}
	if err != nil {
		m.count(err)
	}
	m.pool.mu.Lock()
	defer m.pool.mu.Unlock()
	i.rested = i.served
	if i.Dead() != nil {
		m.pool.retire(i)
		return
	}
	m.pool.release(i)
}

// refill makes one instance if one has died, and reports whether one had.
func (m *module) refill() (any bool, err error) {
	any, late := m.pool.wanted()
	if !any {
		return false, nil
	}
	i, err := m.newInstance()
	if err == nil && late != nil {
		i, err = m.retryLate(i, late)
	}
	if err == nil {
		m.pool.insert(i, late != nil)
	}
	return true, err
}

// retryLate repeats a call that timed out, on a new instance, and returns a live one:
// that instance or its replacement. A module that times out on every try is slow, which
// counts as a fault. Otherwise the host had descheduled its thread, which can happen
// again during a try.
func (m *module) retryLate(i *host.Instance, frame []byte) (*host.Instance, error) {
	for try := 1; ; try++ {
		var r host.Record
		err := i.Replay(frame, &r)
		if i.Dead() == nil {
			return i, nil
		}
		i.Close()
		late := host.CauseOf(err) == host.TimedOut
		if host.Starved(err) {
			return m.newInstance()
		}
		if !late {
			m.count(err)
		} else if try == tries {
			m.log.Warn("a policy's module is slow", "error", err)
			m.slot.fault(m.generation, err)
		}
		if i, err = m.newInstance(); err != nil || !late || try == tries {
			return i, err
		}
	}
}

// fail ends a call that an instance did not answer. The record has the call, as far as it
// is known.
func (m *module) fail(i *instance, rec host.Record, err error) {
	if rec.Cause != host.TooLarge {
		rec.Fuel = i.Fuel()
	}
	if rec.Cause == host.TimedOut {
		m.pool.mu.Lock()
		m.pool.late = append(m.pool.late, slices.Clone(rec.Frame))
		m.pool.mu.Unlock()
	}
	m.calls.add(&rec)
	m.count(err)
	i.Record(nil)
	m.pool.give(i)
}

// count counts and logs a failure. One that is the module's fault ends the module if it
// is the last tolerated one.
func (m *module) count(err error) {
	cause, starved := host.CauseOf(err), host.Starved(err)
	m.pool.mu.Lock()
	if starved {
		m.starved++
	} else {
		m.faults++
	}
	m.pool.mu.Unlock()
	switch {
	case starved:
		m.log.Debug("the machine did not run a policy's module in time; the native policy answers", "error", err)
	case cause != host.TooLarge:
		m.log.Warn("a policy's module failed; the native policy answers", "error", err)
		if cause != host.TimedOut { // retryLate decides whether the module caused that
			m.slot.fault(m.generation, err)
		}
	}
}
