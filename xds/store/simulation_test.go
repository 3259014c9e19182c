package store

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestNeverTwoPlanners runs control planes in virtual time on a store behind a network that
// delays, loses and duplicates requests, answers and updates, as package etcd uses it: a write
// that is not answered is sent again, a late copy of it may still arrive when the writer has
// given up, and an answer may say that an earlier copy was stored. Clocks show times up to an
// hour off and run at different rates; control planes pause, crash and start again. At no
// moment do two believe that they lead, and without faults one of them soon does. None takes a
// lease that it has written for that of another control plane with its name.
func TestNeverTwoPlanners(t *testing.T) {
	var sum counts
	seeds := uint64(testkit.Size(300, 10_000))
	for seed := range seeds {
		s := newSimulation(seed)
		if err := s.run(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		sum.add(s.counts)
	}
	t.Logf("%d runs: %+v", seeds, sum)
	// The faults that the test is about have happened.
	n := int(seeds)
	if sum.Takeovers < 2*n || sum.Lost < 5*n || sum.Late < n/20 || sum.Recognised < n/5 || sum.Refused < n/5 || sum.Repeated < n {
		t.Error("the simulation has hardly any faults")
	}
}

// counts are what happened in simulations.
type counts struct {
	Writes     int // that were stored
	Takeovers  int // changes of the holder
	Lost       int // messages
	Repeated   int // messages that were delivered twice
	Late       int // writes that were stored after their writer had given up
	Refused    int // writes that came after another one
	Recognised int // writes whose first copy was stored and not answered
}

func (c *counts) add(o counts) {
	c.Writes += o.Writes
	c.Takeovers += o.Takeovers
	c.Lost += o.Lost
	c.Repeated += o.Repeated
	c.Late += o.Late
	c.Refused += o.Refused
	c.Recognised += o.Recognised
}

// Times of the simulation.
const (
	simLength  = 60 * time.Second
	calmFrom   = 40 * time.Second // no fault begins later
	leadBy     = 55 * time.Second // a control plane must lead from then on
	simTick    = 100 * time.Millisecond
	simTimeout = 2 * time.Second // of a write, with all attempts
)

// simAttempts is when the attempts of a write begin.
var simAttempts = [...]time.Duration{0, 800 * time.Millisecond, 1400 * time.Millisecond}

type simulation struct {
	rng    *rand.Rand
	now    time.Duration
	queue  simQueue
	order  int
	planes []*simPlane

	version int   // of the store
	stored  Lease // in the store
	writer  int   // the number of the write that stored it
	writes  int   // numbers given so far
	counts
}

// simPlane is one control plane. Its clock shows base + rate·now.
type simPlane struct {
	name   string
	m      *LeaseMachine
	issued map[Lease]bool // by m
	base   time.Time
	rate   float64
	life   int           // number of restarts: messages to an earlier life are dropped
	asleep time.Duration // until then it does nothing

	version int // of the object that it knows; -1: none
	writing int // number of the write in progress; 0: none
	updates []simUpdate
}

type simUpdate struct {
	version int
	lease   Lease
}

func newSimulation(seed uint64) *simulation {
	s := &simulation{rng: rand.New(rand.NewPCG(seed, 11))}
	for i := range 2 + s.rng.IntN(3) {
		p := &simPlane{
			name: string(rune('a' + i)), rate: 0.82 + 0.38*s.rng.Float64(),
			base: start.Add(time.Duration(s.rng.IntN(7200)-3600) * time.Second),
		}
		s.planes = append(s.planes, p)
		s.restart(p)
	}
	return s
}

func (s *simulation) run() error {
	lastLed := time.Duration(0)
	for len(s.queue) > 0 && s.now < simLength {
		e := heap.Pop(&s.queue).(simEvent)
		s.now = e.at
		e.do()
		leaders := ""
		for _, p := range s.planes {
			if p.m.Leads(p.clock(s.now)) {
				leaders += p.name
			}
			if p.m.NameTaken() && p.issued[p.m.stored] {
				return fmt.Errorf("at %v %s takes its own lease for that of another control plane", s.now, p.name)
			}
		}
		if len(leaders) > 1 {
			return fmt.Errorf("at %v both of %q lead", s.now, leaders)
		}
		if leaders != "" || s.now < leadBy {
			lastLed = s.now
		}
		if s.now-lastLed > 2*time.Second {
			return fmt.Errorf("at %v no control plane leads, and nothing has gone wrong since %v", s.now, calmFrom)
		}
	}
	return nil
}

func (p *simPlane) clock(now time.Duration) time.Time {
	return p.base.Add(time.Duration(float64(now) * p.rate))
}

// restart begins a new process of a control plane, which knows nothing.
func (s *simulation) restart(p *simPlane) {
	p.m, p.issued = NewLeaseMachine(p.name), make(map[Lease]bool)
	p.life++
	p.version, p.writing, p.updates = -1, 0, nil
	s.poll(p)
	s.tick(p)
}

// tick lets a control plane act now and then.
func (s *simulation) tick(p *simPlane) {
	life := p.life
	s.after(simTick/2+s.upTo(simTick), func() {
		if p.life != life {
			return
		}
		switch {
		case s.fault(150):
			p.asleep = s.now + s.upTo(5*time.Second)
		case s.fault(250):
			p.life++ // dead
			p.m, p.issued = NewLeaseMachine(p.name), nil
			s.after(s.upTo(4*time.Second), func() { s.restart(p) })
			return
		}
		if s.now >= p.asleep {
			s.act(p)
		}
		s.tick(p)
	})
}

// act does what a control plane does when it has the time: it applies updates, unless it waits
// for the answer of a write, and begins a write that is due.
func (s *simulation) act(p *simPlane) {
	if p.writing != 0 {
		return
	}
	for _, u := range p.updates {
		if u.version >= p.version { // again: the watch repeats itself
			p.version = u.version
			p.m.Observe(p.clock(s.now), u.lease)
		}
	}
	p.updates = nil
	if p.version < 0 || !p.m.WriteDue(p.clock(s.now)) {
		return
	}
	s.writes++
	w := &simWrite{number: s.writes, from: p.version, lease: p.m.Next(p.clock(s.now)), by: p, life: p.life}
	p.writing, p.issued[w.lease] = w.number, true
	for _, at := range simAttempts {
		s.after(at, func() {
			if w.waiting() {
				s.message(func() { s.store(w) })
			}
		})
	}
	s.after(simTimeout, func() { s.answer(w, false, 0) })
}

type simWrite struct {
	number, from int
	lease        Lease
	by           *simPlane
	life         int
}

// waiting reports whether the writer waits for an answer.
func (w *simWrite) waiting() bool { return w.by.life == w.life && w.by.writing == w.number }

// store executes a request, whether or not its writer still waits for it.
func (s *simulation) store(w *simWrite) {
	ok := true
	switch {
	case s.version == w.from:
		s.version++
		if s.stored.Holder != w.lease.Holder {
			s.Takeovers++
		}
		s.stored, s.writer = w.lease, w.number
		s.Writes++
		if !w.waiting() {
			s.Late++
		}
		for _, p := range s.planes {
			s.send(p)
		}
	case s.writer == w.number:
		s.Recognised++
	default:
		s.Refused++
		ok = false
	}
	version := s.version
	s.message(func() { s.answer(w, ok, version) })
}

// answer ends a write, unless it has ended. A process that sleeps sees the answer when it
// wakes up.
func (s *simulation) answer(w *simWrite, ok bool, version int) {
	p := w.by
	switch {
	case !w.waiting():
	case s.now < p.asleep:
		s.after(p.asleep-s.now, func() { s.answer(w, ok, version) })
	default:
		p.writing = 0
		if ok {
			p.version = version
			p.m.Written()
		} else {
			p.m.WriteFailed(p.clock(s.now))
		}
	}
}

// send delivers what is stored now to a control plane, after a while, unless it is lost.
func (s *simulation) send(p *simPlane) {
	life, u := p.life, simUpdate{s.version, s.stored}
	s.message(func() {
		if p.life == life {
			p.updates = append(p.updates, u)
		}
	})
}

// poll sends what is stored once a second.
func (s *simulation) poll(p *simPlane) {
	life := p.life
	s.send(p)
	s.after(time.Second, func() {
		if p.life == life {
			s.poll(p)
		}
	})
}

// message delivers something once, twice or never, now or later.
func (s *simulation) message(deliver func()) {
	if s.fault(6) {
		s.Lost++
		return
	}
	copies := 1
	if s.fault(20) {
		s.Repeated++
		copies = 2
	}
	for range copies {
		delay := s.upTo(50 * time.Millisecond)
		if s.fault(6) {
			delay = s.upTo(6 * time.Second)
		}
		s.after(delay, deliver)
	}
}

// fault reports whether a fault with a chance of one in n happens.
func (s *simulation) fault(n int) bool { return s.now < calmFrom && s.rng.IntN(n) == 0 }

func (s *simulation) upTo(d time.Duration) time.Duration {
	return time.Duration(s.rng.Int64N(int64(d)))
}

func (s *simulation) after(d time.Duration, do func()) {
	s.order++
	heap.Push(&s.queue, simEvent{s.now + d, s.order, do})
}

type simEvent struct {
	at    time.Duration
	order int
	do    func()
}

type simQueue []simEvent

func (q simQueue) Len() int { return len(q) }
func (q simQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].order < q[j].order
}
func (q simQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *simQueue) Push(x any)   { *q = append(*q, x.(simEvent)) }
func (q *simQueue) Pop() any {
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}
