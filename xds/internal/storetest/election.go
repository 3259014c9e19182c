package storetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Election is control planes that do nothing but hold the lease. Stop fails the test if two led at
// once.
type Election struct {
	t      *testing.T
	cancel context.CancelFunc
	ctx    context.Context
	wg     sync.WaitGroup

	mu      sync.Mutex
	leading map[int]time.Time // until when each believes to lead, by the clock of the test
	two     []string
	n       int
}

// NewElection returns an election without control planes; it ends with the test.
func NewElection(t *testing.T) *Election {
	e := &Election{t: t, leading: make(map[int]time.Time)}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	t.Cleanup(e.Stop)
	return e
}

// Add runs a control plane whose clock is off.
func (e *Election) Add(name string, off time.Duration, s store.Plans) {
	self := e.n
	e.n++
	m := store.NewLeaseMachine(name)
	e.wg.Go(func() {
		clock := func() time.Time { return time.Now().Add(off) }
		updates := s.Watch(e.ctx)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		var v store.Version
		type answer struct {
			version store.Version
			err     error
		}
		written, writing, known := make(chan answer, 1), false, false
		for {
			readable := updates
			if writing { // as package fleet does
				readable = nil
			}
			select {
			case u, ok := <-readable:
				if !ok {
					return
				}
				if u.Err == nil && (u.Version != v || !known) {
					v, known = u.Version, true
					m.Observe(clock(), u.Object.Lease)
				}
			case a := <-written:
				if writing = false; a.err == nil {
					v = a.version
					m.Written()
				} else {
					m.WriteFailed(clock())
				}
			case <-tick.C:
			}
			if !writing && m.WriteDue(clock()) {
				writing = true
				o, from := store.Object{Lease: m.Next(clock())}, v
				go func() {
					ctx, cancel := context.WithTimeout(e.ctx, 2*time.Second)
					defer cancel()
					next, err := s.CompareAndSwap(ctx, from, o)
					written <- answer{next, err}
				}()
			}
			e.note(self, m.Leads(clock()))
		}
	})
}

// note records whether a control plane leads, and that another one does, too.
func (e *Election) note(self int, leads bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !leads {
		delete(e.leading, self)
		return
	}
	e.leading[self] = time.Now()
	for other := range e.leading {
		// What another one noted long ago, it may have found to be over, and not yet noted.
		if other != self && time.Since(e.leading[other]) < 100*time.Millisecond {
			e.two = append(e.two, fmt.Sprintf("p%d and p%d lead", self, other))
		}
	}
}

// AwaitLeader waits until a control plane but the given one leads, and returns it.
func (e *Election) AwaitLeader(but int) (leader int) {
	e.t.Helper()
	testkit.WaitFor(e.t, "a control plane leads", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		for n, at := range e.leading {
			if n != but && time.Since(at) < 500*time.Millisecond {
				leader = n
				return true
			}
		}
		return false
	})
	return leader
}

// Stop ends all, and fails the test if two led at once.
func (e *Election) Stop() {
	e.cancel()
	e.wg.Wait()
	if len(e.two) > 0 {
		e.t.Errorf("%d times, two led: %q", len(e.two), e.two[:min(3, len(e.two))])
		e.two = nil
	}
}

// RunPartition separates a control plane from its store while it holds a lease, and delivers what it had sent afterwards:
// another one leads after the term, never both, and the late write changes nothing. All clocks differ, by up to an hour.
// open returns the same plan each time, behind a link of its own.
func RunPartition(t *testing.T, rounds int, open func() (store.Plans, Link)) {
	var links []Link
	e := NewElection(t)
	for i, off := range []time.Duration{0, time.Hour, -time.Hour} {
		s, link := open()
		links = append(links, link)
		e.Add(fmt.Sprint("p", i), off, s)
	}
	for round := range rounds {
		leader := e.AwaitLeader(-1)
		links[leader].Partition()
		began := time.Now()
		next := e.AwaitLeader(leader)
		t.Logf("round %d: p%d leads %v after p%d was cut off", round, next, time.Since(began), leader)
		time.Sleep(time.Second) // it writes meanwhile
		links[leader].Heal()
		time.Sleep(2 * store.LeaseTerm)
		if now := e.AwaitLeader(-1); now != next {
			t.Errorf("round %d: p%d leads instead of p%d, which was not disturbed", round, now, next)
		}
	}
	e.Stop()
}
