package policy

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// The two lowest bits of a slot's state. The other bits count its calls.
const (
	free  = iota // its instance waits for a call
	busy         // one goroutine owns it and all its other fields
	empty        // it has no instance that answers
	what  = 3
)

// slot holds an instance. The goroutine that made it busy owns its fields.
type slot struct {
	instance    *host.Instance
	number      uint64
	calls       uint64 // as of the state
	served      uint64 // calls of the present instance
	rested      uint64 // served at the last run of deferred work
	sampled     *host.Record
	ring        ring
	next        int    // index of the oldest record in the full ring
	late        []byte // the frame of a call that timed out; nil for none
	_           [64]byte
	state       atomic.Uint64
	replaceDue  atomic.Bool  // the instance is dead or old and must be replaced
	deferredDue atomic.Bool  // Run must run the instance's deferred work
	wanted      atomic.Int32 // how many goroutines are in takeSlot for it: calls skip it
	_           [40]byte
}

// A healthy instance is replaced after mostServed calls or when it holds
// mostMemory16/16 of the module's memory limit, checked every lookEvery calls: slow
// leaks of a guest's allocator must not become faults.
const (
	mostServed   = 10_000_000
	lookEvery    = 4096
	mostMemory16 = 15
)

// An instance of a module that decides per request runs its deferred work in time:
// otherwise the guest would do it in the middle of a call, which has no fuel for it.
const (
	restEvery = 500     // calls until Run does it
	restMost  = 1000    // calls until the caller does it, if Run has not
	restFuel  = 5000000 // ticks, some 10 ms: more is a fault
)

// acquire returns a slot for a call, or nil when the native policy must answer.
func (p *Policy) acquire(k abi.Kind) *slot {
	if !p.config.Module.Decides(k) || p.shut.Load() {
		return nil
	}
	if s, alive := p.try(); s != nil || !alive {
		return s
	}
	// All slots are busy. A goroutine that releases a slot wakes one waiter; a waiter
	// that acquires a slot or fails to wakes the next. So no wake-up is lost, although
	// several may be sent as one.
	p.waiting.Add(1)
	for {
		var s *slot
		alive := false
		if !p.shut.Load() {
			s, alive = p.try()
		}
		if s != nil || !alive {
			p.waiting.Add(-1)
			p.wakeWaiting()
			return s
		}
		<-p.wake
	}
}

// try makes a free slot busy and returns it, or nil, and reports whether any slot is
// not empty.
func (p *Policy) try() (s *slot, alive bool) {
	n := uint32(len(p.slots))
	first := uint32(0)
	if n > 1 {
		first = rand.Uint32N(n)
	}
	for i := range n {
		s := &p.slots[(first+i)%n]
		switch state := s.state.Load(); state & what {
		case free:
			// Otherwise takeSlot could wait for ever while calls arrive.
			if s.wanted.Load() > 0 {
				alive = true
				continue
			}
			if s.state.CompareAndSwap(state, state|busy) {
				s.calls = state >> 2
				return s, true
			}
			alive = true
		case busy:
			alive = true
		}
	}
	return nil, alive
}

// wakeWaiting wakes one waiting call, if there is one.
func (p *Policy) wakeWaiting() {
	if p.waiting.Load() > 0 {
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
}

// takeSlot waits until a given slot is not busy, and makes it busy. It polls, so it is
// not for calls.
func (p *Policy) takeSlot(s *slot) {
	s.wanted.Add(1)
	defer s.wanted.Add(-1)
	for {
		if state := s.state.Load(); state&what != busy && s.state.CompareAndSwap(state, state&^what|busy) {
			s.calls = state >> 2
			return
		}
		time.Sleep(patience)
	}
}

// release ends the ownership of a slot, which becomes free or empty.
func (p *Policy) release(s *slot, as uint64) {
	s.state.Store(s.calls<<2 | as)
	p.wakeWaiting()
}

// call begins a call: it assigns the number, seed and time, and decides whether the
// call is recorded.
func (s *slot) call(p *Policy) abi.Call {
	s.calls++
	s.served++
	c := abi.Call{ID: s.number<<48 | s.calls, Seed: mix(s.number<<48 | s.calls)}
	if p.config.Now != nil {
		c.Now = p.config.Now()
	}
	s.sampled = nil
	if every := uint64(p.config.Every); every > 0 {
		switch n := s.calls % every; {
		case n == 0:
			s.sampled = s.record()
			s.instance.Record(s.sampled)
		case len(s.ring) < cap(s.ring):
			s.ring.fetch(n - 1)
		}
	}
	return c
}

// record returns the record to write next: an unused one, or the oldest.
func (s *slot) record() *host.Record {
	if n := len(s.ring); n < cap(s.ring) {
		s.ring = s.ring[:n+1] // the record keeps its reserved memory
		return &s.ring[n]
	}
	r := &s.ring[s.next]
	s.next = (s.next + 1) % len(s.ring)
	return r
}

// trim drops the oldest records until the rest takes at most the given bytes, but never
// the last one. It is called after each recorded call, and applies only to kinds that
// are not decided per request.
func (s *slot) trim(k abi.Kind, most int) {
	if perRequest[k] {
		return
	}
	size, last := 0, len(s.ring)-1
	for n := range s.ring {
		r := &s.ring[(s.next+last-n)%len(s.ring)]
		if size += held(r); size > most && n > 0 {
			*r = host.Record{}
		}
	}
}

// held returns the memory of a record in bytes, 0 for a dropped one.
func held(r *host.Record) int { return cap(r.Frame) + cap(r.Output) }

// dropped reports whether a record is empty.
func dropped(r *host.Record) bool { return r.Module == [32]byte{} }

// endAnswered ends a call that the module answered.
func (p *Policy) endAnswered(s *slot) {
	if s.sampled != nil {
		p.recordFuel(s.sampled.Fuel)
		s.trim(s.sampled.Kind, p.config.KeepBytes)
	}
	p.releaseAlive(s)
}

// releaseAlive releases a slot with a live instance. First it runs deferred work that is
// overdue, or has Run do so; it also has Run replace an old instance.
func (p *Policy) releaseAlive(s *slot) {
	if p.rests && s.served-s.rested >= restEvery {
		switch {
		case s.served-s.rested >= restMost:
			p.runDeferred(s)
			return
		case !s.deferredDue.Load():
			s.deferredDue.Store(true)
			p.refillSoon()
		}
	}
	if s.served%lookEvery == 0 && !s.replaceDue.Load() {
		now, _ := s.instance.Memory()
		if s.served >= mostServed || uint64(now)*16 > uint64(p.pages)<<16*mostMemory16 {
			s.replaceDue.Store(true)
			p.refillSoon()
		}
	}
	p.release(s, free)
}

// runDeferred runs the deferred work of a busy slot's instance and releases the slot.
func (p *Policy) runDeferred(s *slot) {
	s.deferredDue.Store(false)
	s.rested = s.served
	err := s.instance.RunDeferred()
	if err == nil && s.instance.Fuel() > restFuel {
		p.log().Warn("a policy's module rests for too long", "ticks", s.instance.Fuel(), "most", restFuel)
		p.countFault()
	}
	if err == nil {
		p.release(s, free)
		return
	}
	p.count(err)
	p.releaseDead(s)
}

// releaseDead releases a slot whose instance is dead, and has Run replace the instance.
func (p *Policy) releaseDead(s *slot) {
	s.replaceDue.Store(true)
	p.release(s, empty)
	p.refillSoon()
}

// mix is splitmix64. It derives the seed of a call from its number.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
