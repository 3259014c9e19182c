package policy

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// What a slot is: the two lowest bits of its state. The rest counts its calls.
const (
	free  = iota // its instance waits for a call
	busy         // one goroutine owns it and all its other fields
	empty        // it has no instance that answers
	what  = 3
)

// slot holds an instance. Its fields belong to whoever made it busy.
type slot struct {
	instance    *host.Instance
	number      uint64
	calls       uint64 // as of the state
	served      uint64 // by the present instance
	rested      uint64 // of served, when it rested last
	sampled     *host.Record
	ring        ring
	next        int    // of the ring
	late        []byte // the frame of a call that took too long; nil for none
	_           [64]byte
	state       atomic.Uint64
	replaceDue  atomic.Bool  // the instance is dead, or old, and to be replaced
	deferredDue atomic.Bool  // the instance is to rest
	wanted      atomic.Int32 // how many take it: calls leave it to them
	_           [40]byte
}

// When an instance is replaced though nothing is wrong with it: what a guest's
// allocator leaks over a long time should not become a fault.
const (
	mostServed   = 10_000_000
	lookEvery    = 4096
	mostMemory16 = 15 // sixteenths of what the module may have
)

// When an instance rests, for modules that decide with every request: before what
// a guest puts off would be done in the middle of a call, which has no fuel for it.
const (
	restEvery = 500     // calls: then Run has it rest
	restMost  = 1000    // calls: where Run has not, who called does
	restFuel  = 5000000 // ticks, some 10 ms: what takes more is a fault
)

// acquire returns a slot to ask, nil when the native policy is to answer.
func (p *Policy) acquire(k abi.Kind) *slot {
	if !p.config.Module.Decides(k) || p.shut.Load() {
		return nil
	}
	if s, alive := p.try(); s != nil || !alive {
		return s
	}
	// All are busy. Who leaves wakes one, who wakes or gives up wakes the next:
	// no wake-up is lost, though they may run together.
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

// try returns a free slot, now busy, and whether there is any that is not empty.
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
			// Without this, those who take a certain slot could wait for ever while
			// calls come in.
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

// wakeWaiting wakes one that waits, if any.
func (p *Policy) wakeWaiting() {
	if p.waiting.Load() > 0 {
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
}

// takeSlot waits until a slot is not busy, and makes it so. It is for those who have
// time.
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

// release gives a slot back, free or empty.
func (p *Policy) release(s *slot, as uint64) {
	s.state.Store(s.calls<<2 | as)
	p.wakeWaiting()
}

// call begins a call: its number, what comes with it, and whether it is
// recorded.
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

// record returns the oldest of the slot's records, to be written anew.
func (s *slot) record() *host.Record {
	if n := len(s.ring); n < cap(s.ring) {
		s.ring = s.ring[:n+1] // with the memory that it has
		return &s.ring[n]
	}
	r := &s.ring[s.next]
	s.next = (s.next + 1) % len(s.ring)
	return r
}

// trim drops the oldest records beyond so many bytes, but not the last one, after a
// call of a kind was recorded.
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

// held is the memory that a record takes; 0 for one that was dropped, too.
func held(r *host.Record) int { return cap(r.Frame) + cap(r.Output) }

// dropped reports whether there is nothing in a record.
func dropped(r *host.Record) bool { return r.Module == [32]byte{} }

// endAnswered ends a call that was answered.
func (p *Policy) endAnswered(s *slot) {
	if s.sampled != nil {
		p.recordFuel(s.sampled.Fuel)
		s.trim(s.sampled.Kind, p.config.KeepBytes)
	}
	p.releaseAlive(s)
}

// releaseAlive gives a slot back whose instance lives on, and has others see to what it
// needs.
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

// runDeferred has the instance of a slot that is busy rest, and gives the slot back.
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
	s.replaceDue.Store(true)
	p.release(s, empty)
	p.refillSoon()
}

// mix is splitmix64: the randomness that a call gets is its number's.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
