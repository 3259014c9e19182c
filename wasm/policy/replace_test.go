package policy

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
	"github.com/cascadeinfer/cascade/wasm/meter"
)

// picky is a module that refuses its configuration while the first byte of that is 1, and
// traps in every second call for bids.
var picky = hosttest.Policy(
	hosttest.Function(abi.Configure.Export(), nil, hosttest.I32(0), hosttest.Load32(hosttest.Arena+abi.HeaderSize),
		hosttest.If(hosttest.Result(5, 0), hosttest.Return), hosttest.Result(0, 0)),
	hosttest.LeastLoad(hosttest.OneIn(2, hosttest.Unreachable))).Encode()

// stopped makes a policy with one instance per slot whose Run is not called.
func stopped(t *testing.T, c Config, code []byte) *Policy {
	t.Helper()
	m := testkit.Must(host.Load(t.Context(), host.Config{}, code))
	c.Module, c.Native = m, natives
	p := testkit.Must(New(c))
	t.Cleanup(func() {
		p.free()
		if m.Instances() != 0 {
			t.Errorf("%d instances are left", m.Instances())
		}
		m.Close()
	})
	return p
}

// wantSlot checks the state of a slot, and whether its deferred work is due.
func wantSlot(t *testing.T, s *slot, state uint64, deferredDue bool) {
	t.Helper()
	if got := s.state.Load() & what; got != state || s.deferredDue.Load() != deferredDue {
		t.Errorf("state %d, deferred work due %v; want %d, %v", got, s.deferredDue.Load(), state, deferredDue)
	}
}

// TestReplacementIsRetried checks that a failed attempt to make an instance counts as a
// fault and is repeated after a second, and that a replaced instance stays.
func TestReplacementIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		configuration := make([]byte, 8)
		faults := 0
		faulted := func() { // first of a call, then of two attempts to make an instance
			configuration[0] = []byte{1, 1, 0}[faults]
			faults++
		}
		p := running(t, Config{Instances: 1, Failures: -1, Configuration: configuration, Faulted: faulted}, host.Config{}, picky)
		want := func(refused, replaced uint64, alive int) {
			t.Helper()
			synctest.Wait()
			if st := p.Stats(); st.Faults[host.Refused] != refused || st.Replaced != replaced || st.Alive != alive {
				t.Fatalf("%+v; want %d refused, %d replaced, %d alive", st, refused, replaced, alive)
			}
		}
		p.Select(bids(3))
		want(0, 0, 1)
		p.Select(bids(3))
		want(1, 0, 0)
		time.Sleep(retry)
		want(2, 0, 0)
		time.Sleep(retry - 1)
		want(2, 0, 0)
		time.Sleep(1)
		want(2, 1, 1)
		p.refillSoon()
		time.Sleep(10 * retry)
		want(2, 1, 1)
	})
}

// TestLateCallIsKept checks that a call that timed out is repeated once there is a new
// instance, if making one fails first.
func TestLateCallIsKept(t *testing.T) {
	configuration := make([]byte, 8)
	p := stopped(t, Config{Instances: 1, Failures: -1, Configuration: configuration}, picky)
	s := &p.slots[0]
	s.late, s.served, s.rested = frameOf(&selectAdapter, abi.Call{ID: 2}, bids(4)), 9, 8
	s.replaceDue.Store(true)
	configuration[0] = 1
	if p.replace() || s.late == nil || !s.replaceDue.Load() {
		t.Errorf("replaced by an instance that refused its configuration: %+v", p.Stats())
	}
	configuration[0] = 0
	if !p.replace() || s.late != nil || s.replaceDue.Load() || s.served != 0 || s.rested != 0 {
		t.Errorf("not replaced: %+v", p.Stats())
	}
	if st := p.Stats(); st.Faults[host.Refused] != 1 || st.Faults[host.Trapped] != 1 || st.Replaced != 1 {
		t.Errorf("%+v; want one refusal, and a trap of the repeated call", st)
	}
}

// TestReplacementIsDue checks that the age of an instance is looked at in every lookEvery
// calls, and that Run is woken once.
func TestReplacementIsDue(t *testing.T) {
	p := stopped(t, Config{Instances: 1}, hosttest.LeastLoadModule())
	s := &p.slots[0]
	woken := func() bool {
		select {
		case <-p.refill:
			return true
		default:
			return false
		}
	}
	s.served = mostServed - mostServed%lookEvery + lookEvery - 3
	for n, want := range []bool{false, false, true, false} {
		if p.Select(bids(3)); woken() != want || s.replaceDue.Load() != (n >= 2) {
			t.Errorf("call %d: replacement due %v; woken: want %v", n, s.replaceDue.Load(), want)
		}
	}
	s.served = s.served - s.served%lookEvery + lookEvery - 1
	if p.Select(bids(3)); woken() {
		t.Error("Run is woken again")
	}
	s.served = mostServed - mostServed%lookEvery - 1
	s.replaceDue.Store(false)
	if p.Select(bids(3)); s.replaceDue.Load() {
		t.Errorf("replaced after %d calls", s.served)
	}
}

// TestLargeInstancesAreReplaced checks that an instance is replaced when its memory is above
// 15/16 of the module's limit.
func TestLargeInstancesAreReplaced(t *testing.T) {
	for _, c := range []struct {
		pages, most uint32
		want        bool
	}{{16, 16, true}, {16, 17, true}, {15, 16, false}, {16, 18, false}} {
		m := hosttest.Policy(hosttest.LeastLoad())
		m.Pages, m.Most = c.pages, c.most
		p := stopped(t, Config{Instances: 1}, m.Encode())
		p.slots[0].served = lookEvery - 1
		if p.Select(bids(3)); p.slots[0].replaceDue.Load() != c.want {
			t.Errorf("%d pages of %d: replaced %v", c.pages, c.most, !c.want)
		}
	}
}

// TestWarmTakesSlots checks that Warm waits for a call in progress, and stops at the first
// frame that fails.
func TestWarmTakesSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := stopped(t, Config{Instances: 1}, hosttest.LeastLoadModule(hosttest.OneIn(7, hosttest.Result(5, 0), hosttest.Return)))
		s := &p.slots[0]
		p.takeSlot(s)
		calls := s.instance.Calls()
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			var frames [][]byte
			for _, id := range []uint64{1, 7, 1, 1} {
				frames = append(frames, frameOf(&selectAdapter, abi.Call{ID: id}, bids(4)))
			}
			err = p.Warm(frames)
		}()
		time.Sleep(time.Second)
		if s.instance.Calls() != calls {
			t.Error("a frame was replayed during a call")
		}
		p.release(s, free)
		testkit.WaitForEvent(t, "Warm returns", done)
		if host.CauseOf(err) != host.Refused || s.instance.Calls() != calls+2 {
			t.Errorf("%v after %d calls, want a refusal after two", err, s.instance.Calls()-calls)
		}
		wantSlot(t, s, free, false)
	})
}

// TestWarmIsReady checks that Warm calls every instance, and that only recording policies
// reserve memory for records.
func TestWarmIsReady(t *testing.T) {
	for _, every := range []int{0, 3} {
		p := stopped(t, Config{Instances: 3, Every: every}, hosttest.LeastLoadModule())
		before := p.slots[0].instance.Calls()
		testkit.NoError(t, p.Warm([][]byte{frameOf(&selectAdapter, abi.Call{ID: 1}, bids(4))}))
		for n := range p.slots {
			s := &p.slots[n]
			reserved := cap(s.ring[:1][0].Frame) > 0
			if calls := s.instance.Calls() - before; calls != 1 || reserved != (every > 0) {
				t.Errorf("one in %d is recorded: instance %d was called %d times; memory reserved: %v", every, n, calls, reserved)
			}
		}
	}
}

// TestWarmOfSlowModules checks that a module that times out is no error of Warm, and that
// its dead instance is replaced.
func TestWarmOfSlowModules(t *testing.T) {
	w := host.NewWatchdog()
	testkit.Run(t, w.Run)
	hc := host.Config{Watchdog: w}
	hc.Limits[abi.Select] = host.Limit{Fuel: meter.MaxFuel, Wall: time.Millisecond}
	p := running(t, Config{Instances: 2}, hc, hosttest.LeastLoadModule(hosttest.Forever))
	testkit.NoError(t, p.Warm([][]byte{frameOf(&selectAdapter, abi.Call{ID: 1}, bids(4))}))
	testkit.WaitFor(t, "both instances are replaced", func() bool { return p.Stats().Replaced == 2 })
}

// TestReplacementWaits checks that an instance is not replaced during a call.
func TestReplacementWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := running(t, Config{Instances: 1}, host.Config{}, hosttest.LeastLoadModule())
		s := &p.slots[0]
		p.takeSlot(s)
		before := s.instance
		s.replaceDue.Store(true)
		p.refillSoon()
		time.Sleep(time.Second)
		if s.instance != before || p.Stats().Replaced != 0 {
			t.Error("replaced during a call")
		}
		p.release(s, free)
		testkit.WaitFor(t, "a new instance", func() bool { return p.Stats().Replaced == 1 })
	})
}

// TestTakenSlots checks that calls leave a slot to a goroutine that waits in takeSlot for
// it, and that Records waits for the call in progress.
func TestTakenSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := stopped(t, Config{Instances: 1}, hosttest.LeastLoadModule())
		s := &p.slots[0]
		p.takeSlot(s)
		done := make(chan struct{})
		go func() { p.Records(); close(done) }()
		synctest.Wait()
		if n := s.wanted.Load(); n != 1 {
			t.Errorf("%d wait for the slot", n)
		}
		select {
		case <-done:
			t.Error("records were read during a call")
		default:
		}
		p.release(s, free)
		if got, alive := p.try(); got != nil || !alive {
			t.Errorf("a call got the slot: %v; alive %v", got != nil, alive)
		}
		testkit.WaitForEvent(t, "Records returns", done)
		if got, _ := p.try(); got != s || s.wanted.Load() != 0 {
			t.Errorf("the slot is not free; %d wait for it", s.wanted.Load())
		}
		p.release(s, free)
	})
}

// TestEveryInstanceIsCalled checks that calls are spread over the instances, and that the
// search for a free one goes round.
func TestEveryInstanceIsCalled(t *testing.T) {
	p := stopped(t, Config{Instances: 3}, hosttest.LeastLoadModule())
	for range 200 {
		p.Select(bids(3))
	}
	for n := range p.slots {
		if calls := p.slots[n].calls; calls < 20 {
			t.Errorf("instance %d got %d of 200 calls", n, calls)
		}
	}
	if len(p.wake) > 0 {
		t.Error("a wake-up though no call waits")
	}
	for range 20 {
		for range p.slots {
			if s, alive := p.try(); s == nil || !alive {
				t.Fatal("no slot, though one is free")
			}
		}
		for n := range p.slots {
			p.release(&p.slots[n], free)
		}
	}
	for n := range p.slots {
		p.takeSlot(&p.slots[n])
	}
	if s, alive := p.try(); s != nil || !alive {
		t.Errorf("a slot though all are busy: %v; alive %v", s != nil, alive)
	}
	for n := range p.slots {
		p.release(&p.slots[n], empty)
	}
	if s, alive := p.try(); s != nil || alive {
		t.Errorf("a slot though all are empty: %v; alive %v", s != nil, alive)
	}
}

// TestEndTakesEffectAtOnce checks that the native policy answers calls while Run waits for
// one in progress before it ends.
func TestEndTakesEffectAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := testkit.Must(host.Load(t.Context(), host.Config{}, hosttest.LeastLoadModule()))
		defer m.Close()
		p := testkit.Must(New(Config{Module: m, Native: natives, Instances: 2}))
		p.takeSlot(&p.slots[0])
		end := make(chan struct{})
		stop := testkit.Run(t, p.Run)
		go func() { stop(); close(end) }()
		synctest.Wait()
		if b := bids(4); p.Select(b) != natives.Selector.Select(b) || p.Stats().Calls != 0 {
			t.Errorf("%+v", p.Stats())
		}
		p.release(&p.slots[0], free)
		testkit.WaitForEvent(t, "Run ends", end)
	})
}

// TestRecordsOfDeadInstances checks that Records leaves the slot of a dead instance empty.
func TestRecordsOfDeadInstances(t *testing.T) {
	p := stopped(t, Config{Instances: 1}, hosttest.LeastLoadModule(hosttest.Unreachable))
	p.Select(bids(4))
	if n := len(p.Records()); n != 1 {
		t.Errorf("%d records", n)
	}
	wantSlot(t, &p.slots[0], empty, false)
	if st := p.Stats(); st.Alive != 0 {
		t.Errorf("%+v", st)
	}
}

// TestNumbersOfCalls checks that calls of all instances have different numbers, that the
// seed follows from the number, and that the time is that of the configuration.
func TestNumbersOfCalls(t *testing.T) {
	p := stopped(t, Config{Instances: 3, Now: func() policies.Micros { return 77 }}, hosttest.LeastLoadModule())
	for n := range p.slots {
		s := &p.slots[n]
		for i := range uint64(3) {
			id := uint64(n)<<48 | i + 1
			if c := s.call(p); c.ID != id || c.Seed != mix(id) || c.Now != 77 || s.calls != i+1 || s.served != i+1 {
				t.Errorf("instance %d: %+v", n, c)
			}
		}
	}
}
