package policy

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
	"github.com/cascadeinfer/cascade/wasm/meter"
)

// TestOldInstancesAreReplaced checks that old instances are replaced, and that the module
// answers every call meanwhile.
func TestOldInstancesAreReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := running(t, Config{Instances: 1}, host.Config{}, hosttest.LeastLoadModule())
		p.Select(bids(3))
		s := &p.slots[0]
		p.takeSlot(s)
		s.served = mostServed - mostServed%lookEvery + lookEvery - 1
		p.release(s, free)
		calls := uint64(1)
		testkit.WaitFor(t, "a new instance", func() bool {
			p.Select(bids(3))
			calls++
			return p.Stats().Replaced == 1
		})
		if st := p.Stats(); st.Calls != calls || st.Faults != [host.NumCauses]uint64{} || st.Alive != 1 {
			t.Errorf("after %d calls: %+v", calls, st)
		}
	})
}

// TestEndWhileCalled checks that calls during and after the end of Run are answered.
func TestEndWhileCalled(t *testing.T) {
	m := testkit.Must(host.Load(context.Background(), host.Config{}, hosttest.LeastLoadModule(hosttest.OneIn(50, hosttest.Unreachable))))
	for range 20 {
		p := testkit.Must(New(Config{Module: m, Native: natives, Instances: 2, Failures: 1 << 20}))
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
		testkit.NoError(t, p.Run(ctx))
		if m.Instances() != 0 {
			t.Errorf("%d instances are left", m.Instances())
		}
		stop.Store(true)
		wg.Wait()
		if st := p.Stats(); st.Alive != 0 {
			t.Errorf("%+v", st)
		}
	}
	testkit.NoError(t, m.Close())
}

// TestBreakerLetsWaitersGo checks that calls that wait for an instance when the breaker opens
// are answered.
func TestBreakerLetsWaitersGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := running(t, Config{Instances: 1, Failures: 1}, host.Config{}, hosttest.LeastLoadModule(hosttest.Unreachable))
		p.takeSlot(&p.slots[0])
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if p.Select(bids(4)) != (bidask.LeastLoad{}).Select(bids(4)) {
					t.Error("wrong")
				}
			})
		}
		testkit.WaitFor(t, "five wait", func() bool { return p.waiting.Load() == 5 })
		p.release(&p.slots[0], free)
		wg.Wait()
		if st := p.Stats(); !st.Open || st.Calls != 1 {
			t.Errorf("%+v", st)
		}
		if n := p.waiting.Load(); n != 0 {
			t.Errorf("%d wait", n)
		}
	})
}

// TestLateCalls checks that a call that timed out is repeated, and counts as a fault only if
// it times out again.
func TestLateCalls(t *testing.T) {
	w := host.NewWatchdog()
	testkit.Run(t, w.Run)
	var reported atomic.Int32
	hc := host.Config{Watchdog: w}
	hc.Limits[abi.Select].Fuel = meter.MaxFuel
	c := Config{Instances: 1, Failures: -1, Faulted: func() { reported.Add(1) }}

	patient := hc
	hc.Limits[abi.Select].Wall = 20 * time.Millisecond
	slow := running(t, c, hc, hosttest.LeastLoadModule(hosttest.Forever))
	testkit.WaitFor(t, "it is blamed", func() bool { // once its thread is scheduled
		if b := bids(4); slow.Select(b) != natives.Selector.Select(b) {
			t.Error("wrong")
		}
		return reported.Load() > 0
	})
	if st := slow.Stats(); st.Faults[host.TimedOut] == 0 {
		t.Errorf("%+v", st)
	}

	reported.Store(0)
	good := running(t, c, patient, hosttest.LeastLoadModule())
	s := &good.slots[0]
	good.takeSlot(s) // the state after a call that timed out
	s.instance.Close()
	s.late = frameOf(&selectAdapter, abi.Call{}, bids(4))
	s.replaceDue.Store(true)
	good.release(s, empty)
	good.refillSoon()
	testkit.WaitFor(t, "a new instance", func() bool { return good.Stats().Replaced == 1 })
	if b := bids(4); good.Select(b) != natives.Selector.Select(b) || reported.Load() != 0 || good.Stats().Faults != [host.NumCauses]uint64{} {
		t.Errorf("reported %d times: %+v", reported.Load(), good.Stats())
	}
}

// TestStarvedCalls checks that calls that the host did not run in time are counted
// separately, are no faults, and never open the breaker.
func TestStarvedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reported atomic.Int32
		p := running(t, Config{Instances: 1, Failures: 1, Faulted: func() { reported.Add(1) }}, host.Config{}, hosttest.LeastLoadModule())
		s := &p.slots[0]
		const times = 20
		for n := range uint64(times) {
			p.takeSlot(s) // the state after a call that a Watchdog ended
			s.call(p)
			s.instance.Close()
			p.endFailed(s, abi.Select, &host.Fault{Kind: abi.Select, Cause: host.TimedOut, Starved: true}, frameOf(&selectAdapter, abi.Call{}, bids(4)))
			testkit.WaitFor(t, "a new instance", func() bool { return p.Stats().Replaced == n+1 })
		}
		if b := bids(4); p.Select(b) != natives.Selector.Select(b) {
			t.Error("wrong")
		}
		st := p.Stats()
		if reported.Load() != 0 || st.Open || st.Starved != times || st.Faults != [host.NumCauses]uint64{} || st.Calls != times+1 {
			t.Errorf("reported %d times: %+v", reported.Load(), st)
		}
		if r := p.Records(); len(r) != times || r[0].Cause != host.TimedOut {
			t.Errorf("%d records", len(r))
		}
	})
}

// TestWarm checks that every instance answers, that nothing is counted, and that a failed
// instance is replaced.
func TestWarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := running(t, Config{Instances: 3, Every: 1}, host.Config{}, hosttest.LeastLoadModule(hosttest.OneIn(7, hosttest.Unreachable)))
		good, bad := frameOf(&selectAdapter, abi.Call{ID: 1}, bids(4)), frameOf(&selectAdapter, abi.Call{ID: 7}, bids(4))
		if err := p.Warm([][]byte{good, good}); err != nil || p.Stats().Calls != 0 || len(p.Records()) != 0 {
			t.Errorf("%v: %+v", err, p.Stats())
		}
		if err := p.Warm([][]byte{good, bad}); host.CauseOf(err) != host.Trapped {
			t.Error(err)
		}
		testkit.WaitFor(t, "it is replaced", func() bool { return p.Stats().Replaced == 1 && p.Stats().Alive == 3 })
	})
}
