package policy

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// eventually polls for what Run does on its own goroutine.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not in ten seconds: " + what)
		}
	}
}

// TestOldInstancesAreReplaced by new ones, with no call unanswered by the module
// meanwhile.
func TestOldInstancesAreReplaced(t *testing.T) {
	p := running(t, Config{Instances: 1}, host.Config{}, leastLoad())
	p.Select(bids(3))
	s := &p.slots[0]
	p.take(s)
	s.served = mostServed - mostServed%lookEvery + lookEvery - 1
	p.release(s, free)
	calls := uint64(1)
	eventually(t, "a new instance", func() bool {
		p.Select(bids(3))
		calls++
		return p.Stats().Replaced == 1
	})
	if st := p.Stats(); st.Calls != calls || st.Faults != [host.Causes]uint64{} || st.Alive != 1 {
		t.Errorf("after %d calls: %+v", calls, st)
	}
}

// TestEndWhileCalled: calls that come while Run ends, and after it, are answered.
func TestEndWhileCalled(t *testing.T) {
	m, err := host.Load(context.Background(), host.Config{}, leastLoad(hosttest.OneIn(50, hosttest.Unreachable)))
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		p, err := New(Config{Module: m, Native: natives, Instances: 2, Failures: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		var stop atomic.Bool
		for range 4 {
			wg.Go(func() {
				for n := 0; !stop.Load(); n++ {
					if b := bids(1 + n%9); p.Select(b) != (bidask.LeastLoad{}).Select(b) {
						t.Error("wrong")
					}
				}
			})
		}
		time.AfterFunc(2*time.Millisecond, cancel)
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
		if m.Live() != 0 {
			t.Errorf("%d instances are left", m.Live())
		}
		stop.Store(true)
		wg.Wait()
		if st := p.Stats(); st.Alive != 0 {
			t.Errorf("%+v", st)
		}
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

// TestBreakerLetsWaitersGo: those who wait for an instance when the breaker
// opens are answered.
func TestBreakerLetsWaitersGo(t *testing.T) {
	p := running(t, Config{Instances: 1, Failures: 1}, host.Config{}, leastLoad(hosttest.Unreachable))
	p.take(&p.slots[0])
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if p.Select(bids(4)) != (bidask.LeastLoad{}).Select(bids(4)) {
				t.Error("wrong")
			}
		})
	}
	eventually(t, "five wait", func() bool { return p.waiting.Load() == 5 })
	p.release(&p.slots[0], free)
	wg.Wait()
	if st := p.Stats(); !st.Open || st.Calls != 1 {
		t.Errorf("%+v", st)
	}
	if n := p.waiting.Load(); n != 0 {
		t.Errorf("%d wait", n)
	}
}
