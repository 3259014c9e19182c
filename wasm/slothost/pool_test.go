package slothost

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
	"github.com/cascadeinfer/cascade/wasm/meter"
)

// selectSlot returns the slot bid-select with the given number of instances. Every call is
// recorded.
func selectSlot(t testing.TB, instances int) *slot {
	c := config(t)
	c.Instances, c.Logger = instances, nil
	_, s := alone(t, c, abi.Select)
	return s
}

// choose makes a call of a module, and checks that the native policy answers likewise if the
// module does. It returns whether the module did.
func choose(t testing.TB, m *module, n int) bool {
	t.Helper()
	b := bids(1+n%9, uint64(n))
	got, ok := askModule(m, &selectKind, nil, b)
	if ok && got != natives.Selector.Select(b) {
		t.Errorf("call %d: %d, want %d", n, got, natives.Selector.Select(b))
	}
	return ok
}

// alive returns how many instances of a module can answer.
func (m *module) alive() int {
	m.pool.mu.Lock()
	defer m.pool.mu.Unlock()
	return len(m.pool.free) + m.pool.busy
}

// TestInstancesByDefault checks that a module has an instance per processor if it decides
// for requests, and one otherwise.
func TestInstancesByDefault(t *testing.T) {
	_, guards := alone(t, config(t), abi.Guard)
	guard := hosttest.Policy(hosttest.Function(abi.Guard.Export(), nil, hosttest.Result(0, 0))).Encode()
	if n := compiled(t, guards, guard).alive(); n != 1 {
		t.Errorf("a guard has %d instances", n)
	}
	if n := compiled(t, selectSlot(t, 0), hosttest.LeastLoadModule()).alive(); n != runtime.GOMAXPROCS(0) {
		t.Errorf("a selector has %d instances", n)
	}
}

// TestEveryCallIsAnswered calls an active module from many goroutines with few instances. The
// module traps in one of a hundred calls and gives an invalid answer in another, so that its
// instances are replaced meanwhile.
func TestEveryCallIsAnswered(t *testing.T) {
	code := hosttest.LeastLoadModule(
		hosttest.OneIn(100, hosttest.Unreachable),
		hosttest.OneIn(101, hosttest.Result(0, 1<<20), hosttest.Return),
		hosttest.OneIn(103, hosttest.Result(5, 0), hosttest.Return),
		hosttest.OneIn(1009, hosttest.Forever))
	const workers = 8
	many := uint64(testkit.Size(10, 40))
	for _, instances := range []int{1, 3} {
		c := config(t)
		c.Instances, c.Every, c.Logger = instances, 7, nil
		slots, s := alone(t, c, abi.Select)
		m := compiled(t, s, code)
		s.modules[7] = m
		s.setRoute(routeTo(7))
		var wg sync.WaitGroup
		var enough atomic.Bool
		for range workers {
			wg.Go(func() {
				for n := 0; !enough.Load(); n++ {
					ask(t, slots, n)
				}
			})
		}
		for !enough.Load() {
			slots.Records(abi.Select)
			enough.Store(m.counted().Faults > 4*many)
		}
		wg.Wait()
		causes := map[host.Cause]int{}
		for _, r := range slots.Records(abi.Select) {
			causes[r.Cause]++
		}
		t.Logf("%d instances: %+v, recorded %v", instances, m.counted(), causes)
		s.setRoute(routeTo(0))
	}
}

// TestFailures checks that a call that the module does not answer is a fault, and is
// recorded with the frame that was sent, whether it was to be recorded or not; and that
// arguments that exceed the frame limit are none.
func TestFailures(t *testing.T) {
	for _, every := range []int{-1, 1} {
		c := config(t)
		c.Instances, c.Every = 1, every
		_, s := alone(t, c, abi.Select)
		m := compiled(t, s, hosttest.LeastLoadModule(hosttest.I32(hosttest.Arena), hosttest.I32(255), hosttest.I32(64), hosttest.Op(0xfc, 11, 0), // overwrites the frame
			hosttest.Result(5, 0), hosttest.Return))
		for n := range 3 {
			if choose(t, m, n) {
				t.Fatal("a refusal is an answer")
			}
		}
		if _, ok := askModule(m, &selectKind, nil, make([]policies.Bid, 5000)); ok {
			t.Fatal("arguments beyond the limit are answered")
		}
		got, _ := m.calls.since(0)
		if len(got) != 4 || got[0].Cause != host.Refused || got[0].Fuel == 0 || got[0].Kind != abi.Select || got[0].Module != m.host.SHA256() ||
			got[3].Cause != host.TooLarge || got[3].Fuel != 0 {
			t.Fatalf("%+v", got)
		}
		if words, st := abi.DecodeSelectCall(got[2].Frame, nil); st != abi.OK || len(words) != 3 || words[2] != bids(3, 2)[2] {
			t.Errorf("%v, %v", words, st)
		}
		if st := m.counted(); st.Calls != 4 || st.Faults != 4 || st.Fuel.Last != 0 || st.Fuel.Max < got[0].Fuel {
			t.Errorf("%+v", st)
		}
	}
}

// picky is a module that refuses its configuration while the first byte of that is 1, and
// traps in every second call for bids.
var picky = hosttest.Policy(
	hosttest.Function(abi.Configure.Export(), nil, hosttest.I32(0), hosttest.Load32(hosttest.Arena+abi.HeaderSize),
		hosttest.If(hosttest.Result(5, 0), hosttest.Return), hosttest.Result(0, 0)),
	hosttest.LeastLoad(hosttest.OneIn(2, hosttest.Unreachable))).Encode()

// TestReplacementIsRetried checks that the native policy answers while no instance is left,
// that a failed attempt to make one counts as a fault and is repeated after a second, and
// that a call that timed out before is repeated then.
func TestReplacementIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := selectSlot(t, 1)
		configuration := make([]byte, 8)
		c := signedModule(t, picky, abi.Select, nil, nil)
		c.Configuration = configuration
		m := testkit.Must(s.compile(t.Context(), c))
		want := func(faults uint64, alive int) {
			t.Helper()
			synctest.Wait()
			if st := m.counted(); st.Faults != faults || m.alive() != alive {
				t.Fatalf("%+v, %d alive; want %d faults, %d alive", st, m.alive(), faults, alive)
			}
		}
		choose(t, m, 1)
		want(0, 1)
		configuration[0] = 1
		if choose(t, m, 2) {
			t.Error("a trap is an answer")
		}
		m.pool.mu.Lock()
		m.pool.late = append(m.pool.late, selectFrame(4, bids(3, 1)))
		m.pool.mu.Unlock()
		want(2, 0)
		if choose(t, m, 3) {
			t.Error("a module without instances answers")
		}
		time.Sleep(retry)
		want(3, 0)
		configuration[0] = 0
		time.Sleep(retry - 1)
		want(3, 0)
		time.Sleep(time.Nanosecond)
		want(4, 1) // the repeated call traps, and there is another instance
		m.pool.wakeKeeper()
		time.Sleep(10 * retry)
		want(4, 1)
		testkit.NoError(t, m.close())
	})
}

// TestOldInstancesAreReplaced checks that an instance is replaced by its age or its memory,
// looked at every lookEvery calls, and that the module answers every call meanwhile.
func TestOldInstancesAreReplaced(t *testing.T) {
	for name, c := range map[string]struct {
		pages, most uint32
		served      uint64
		want        bool
	}{
		"old":           {1, 16, mostServed - mostServed%lookEvery + lookEvery - 1, true},
		"not old":       {1, 16, mostServed - mostServed%lookEvery - 1, false},
		"full":          {16, 16, lookEvery - 1, true},
		"almost full":   {15, 16, lookEvery - 1, false},
		"full, unasked": {16, 16, lookEvery - 4, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			code := hosttest.Policy(hosttest.LeastLoad())
			code.Pages, code.Most = c.pages, c.most
			m := compiled(t, selectSlot(t, 1), code.Encode())
			old := m.pool.free[0].Instance
			m.pool.free[0].served = c.served
			for n := range 3 {
				if !choose(t, m, n) {
					t.Errorf("%s: call %d is not answered", name, n)
				}
				synctest.Wait()
			}
			m.pool.mu.Lock()
			defer m.pool.mu.Unlock()
			if replaced := m.pool.free[0].Instance != old; replaced != c.want || len(m.pool.free) != 1 {
				t.Errorf("%s: replaced %v, %d instances", name, replaced, len(m.pool.free))
			}
		})
	}
}

// TestCallsWait checks that calls wait for a busy instance, and that the native policy
// answers them when the last instance dies.
func TestCallsWait(t *testing.T) {
	for _, dies := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := selectSlot(t, 1)
			configuration := make([]byte, 8)
			c := signedModule(t, picky, abi.Select, nil, nil)
			c.Configuration = configuration
			m := testkit.Must(s.compile(t.Context(), c))
			i, _ := m.pool.take()
			var wg sync.WaitGroup
			var answered atomic.Int32
			for range 5 {
				wg.Go(func() {
					if i, _ := m.pool.take(); i != nil {
						m.pool.give(i)
						answered.Add(1)
					}
				})
			}
			synctest.Wait()
			if dies {
				configuration[0] = 1 // no other instance is made
				i.Close()
			}
			m.pool.give(i)
			wg.Wait()
			if n := answered.Load(); n != map[bool]int32{false: 5, true: 0}[dies] {
				t.Errorf("dies %v: %d got the instance", dies, n)
			}
			testkit.NoError(t, m.close())
		})
	}
}

// TestLateCalls checks that a call that timed out is repeated, and counts as a fault only if
// it times out again.
func TestLateCalls(t *testing.T) {
	c := config(t)
	c.Instances, c.Logger = 1, nil
	c.Limits[abi.Select] = host.Limit{Fuel: meter.MaxFuel, Wall: 5 * time.Millisecond}
	slots, s := alone(t, c, abi.Select)
	testkit.Run(t, slots.watch.Run)
	slow := compiled(t, s, hosttest.LeastLoadModule(hosttest.Forever))
	s.modules[7] = slow
	log := new(testkit.Log)
	slow.log = log.Logger()
	testkit.WaitFor(t, "it is blamed", func() bool { // once its thread is scheduled
		if choose(t, slow, 1) {
			t.Error("answered")
		}
		return log.Count("module is slow") > 0
	})

	// A call that was late because the machine was busy.
	_, patient := alone(t, config(t), abi.Select)
	good := compiled(t, patient, hosttest.LeastLoadModule())
	i, number := good.pool.take()
	frame := selectFrame(number, bids(4, 1))
	i.Close()
	good.fail(i, host.Record{Kind: abi.Select, Frame: frame, Cause: host.TimedOut}, &host.Fault{Kind: abi.Select, Cause: host.TimedOut, Starved: true})
	testkit.WaitFor(t, "a new instance", func() bool { return good.alive() == runtime.GOMAXPROCS(0) })
	if st := good.counted(); st.Starved != 1 || st.Faults != 0 || !choose(t, good, 1) {
		t.Errorf("%+v", st)
	}
	if r, _ := good.calls.since(0); r[0].Cause != host.TimedOut {
		t.Errorf("%+v", r[0])
	}
	if len(good.pool.late) != 0 {
		t.Error("it was not repeated")
	}
}

// TestWarmPool checks that every instance of a module replays its vectors, and that one that
// times out is replaced without an error.
func TestWarmPool(t *testing.T) {
	m := compiled(t, selectSlot(t, 3), hosttest.LeastLoadModule())
	before := m.pool.free[0].Calls()
	testkit.NoError(t, m.warmPool([][]byte{selectFrame(1, bids(4, 1))}))
	for n, i := range m.pool.free {
		if i.Calls() != before+1 {
			t.Errorf("instance %d was called %d times", n, i.Calls()-before)
		}
	}
	c := config(t)
	c.Instances = 2
	c.Limits[abi.Select] = host.Limit{Fuel: meter.MaxFuel, Wall: time.Millisecond}
	slots, s := alone(t, c, abi.Select)
	testkit.Run(t, slots.watch.Run)
	slow := compiled(t, s, hosttest.LeastLoadModule(hosttest.Forever))
	testkit.NoError(t, slow.warmPool([][]byte{selectFrame(1, bids(4, 1))}))
	testkit.WaitFor(t, "both instances are replaced", func() bool { return slow.alive() == 2 })
}

// tiring returns a module that traps when it gets more than the given number of calls
// without running its deferred work, which is rest. The count is at address 8.
func tiring(most int32, rest ...[]byte) []byte {
	load, store := hosttest.Cat(hosttest.I32(0), hosttest.Load32(8)), hosttest.Store32(8)
	return hosttest.Policy(
		hosttest.LeastLoad(hosttest.I32(0), load, hosttest.I32(1), hosttest.Add, store,
			load, hosttest.I32(most), hosttest.Op(0x4b), hosttest.If(hosttest.Unreachable)),
		hosttest.Function(abi.ExportDeferred, nil, append(rest, hosttest.I32(0), hosttest.I32(0), store, hosttest.I64(0))...)).Encode()
}

// TestDeferredWork checks that no instance gets more than restEvery calls without running its
// deferred work.
func TestDeferredWork(t *testing.T) {
	const callers, calls = 4, 5000
	for _, instances := range []int{1, 2} {
		m := compiled(t, selectSlot(t, instances), tiring(restEvery))
		var group sync.WaitGroup
		for range callers {
			group.Go(func() {
				for n := range calls {
					if !choose(t, m, n) {
						t.Error("not answered")
					}
				}
			})
		}
		group.Wait()
		if st := m.counted(); st.Calls != callers*calls || st.Faults != 0 {
			t.Errorf("%+v", st)
		}
	}
	_, guards := alone(t, config(t), abi.Guard)
	guard := compiled(t, guards, hosttest.Policy(
		hosttest.Function(abi.Guard.Export(), nil, hosttest.Result(0, 0)),
		hosttest.Function(abi.ExportDeferred, nil, hosttest.I64(0))).Encode())
	if guard.pool.rests || compiled(t, selectSlot(t, 1), hosttest.LeastLoadModule()).pool.rests {
		t.Error("modules of plans, or without deferred work, rest")
	}
}

// TestDeferredWorkWaits checks that the last free instance goes on answering while another one
// is being made, and for how many calls.
func TestDeferredWorkWaits(t *testing.T) {
	m := compiled(t, selectSlot(t, 2), tiring(1<<30))
	m.stop()
	m.kept.Wait() // no instance is made, and no deferred work is run
	dies, _ := m.pool.take()
	dies.Close()
	m.pool.give(dies)
	for _, c := range []struct{ served, free int }{{restEvery - 1, 1}, {restLate - 2, 1}, {restLate - 1, 0}} {
		i, _ := m.pool.take()
		i.served = uint64(c.served)
		if m.pool.give(i); len(m.pool.free) != c.free {
			t.Errorf("after %d calls %d instances are free, want %d", c.served+1, len(m.pool.free), c.free)
		}
	}
}

// TestBadDeferredWork checks that deferred work that fails or takes too long is a fault.
func TestBadDeferredWork(t *testing.T) {
	for name, rest := range map[string][]byte{
		"traps":   hosttest.Unreachable,
		"forever": hosttest.Forever,
		"long":    hosttest.Cat(hosttest.Loop(hosttest.Get(0), hosttest.I32(1), hosttest.Add, hosttest.Op(0x22, 0), hosttest.I32(2*restFuel), hosttest.Op(0x49), hosttest.BrIf(0))),
	} {
		log := new(testkit.Log)
		m := compiled(t, selectSlot(t, 1), tiring(1<<30, rest))
		m.log = log.Logger()
		for n := range restEvery + 1 {
			choose(t, m, n)
		}
		testkit.WaitFor(t, name+" is a fault", func() bool { return log.Count("rests for too long")+log.Count("module failed") == 1 })
	}
}

// counted returns the counters of a module.
func (m *module) counted() (s lifecycle.Status) {
	m.addCounts(&s)
	return s
}
