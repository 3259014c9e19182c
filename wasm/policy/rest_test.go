package policy

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest/guesttest"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// unlimited returns a configuration without wall limits, for busy hosts.
func unlimited() (c host.Config) {
	for k := range c.Limits {
		c.Limits[k].Wall = time.Hour
	}
	return c
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

// TestRests checks that no instance gets more than restMost calls without running its
// deferred work, whether Run does it in time or not.
func TestRests(t *testing.T) {
	const callers, calls = 4, 5000
	ask := func(p *Policy) {
		t.Helper()
		var group sync.WaitGroup
		for range callers {
			group.Go(func() {
				for n := range calls {
					if b := bids(1 + n%5); p.Select(b) != (bidask.LeastLoad{}).Select(b) {
						t.Error("wrong")
					}
				}
			})
		}
		group.Wait()
		if st := p.Stats(); st.Calls != callers*calls || st.Faults != [host.NumCauses]uint64{} || st.Replaced != 0 {
			t.Errorf("%+v", st)
		}
	}
	ask(running(t, Config{Instances: 2}, unlimited(), tiring(restMost)))
	m := testkit.Must(host.Load(t.Context(), unlimited(), tiring(restMost)))
	defer m.Close()
	p := testkit.Must(New(Config{Module: m, Native: natives, Instances: 1}))
	ask(p)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Run(over); err != nil || m.Instances() != 0 {
		t.Error(err, m.Instances())
	}
}

// TestBadRests checks that deferred work that fails or takes too long is a fault, and that
// every call is answered.
func TestBadRests(t *testing.T) {
	for name, rest := range map[string][]byte{
		"traps":   hosttest.Unreachable,
		"forever": hosttest.Forever,
		"long":    hosttest.Cat(hosttest.Loop(hosttest.Get(0), hosttest.I32(1), hosttest.Add, hosttest.Op(0x22, 0), hosttest.I32(2*restFuel), hosttest.Op(0x49), hosttest.BrIf(0))),
	} {
		t.Run(name, func(t *testing.T) {
			p := running(t, Config{Instances: 1, Failures: 3, Window: time.Hour}, unlimited(), tiring(1<<30, rest))
			for !p.Stats().Open {
				if b := bids(3); p.Select(b) != (bidask.LeastLoad{}).Select(b) {
					t.Fatal("wrong")
				}
			}
		})
	}
}

// TestGarbageOfBids checks that a guest in Go that allocates 2 KiB for each bid never runs
// out of fuel.
func TestGarbageOfBids(t *testing.T) {
	const calls = 30_000
	code := guesttest.Build(t, filepath.Join("..", "guest", "testdata", "guest"))
	p := running(t, Config{Instances: 1}, unlimited(), code)
	pos, h := policies.Occupancy{Capacity: 1e6, Held: 10}, policies.Migration{Request: "r", Length: 2048}
	for range calls {
		if bid, ok := p.Quote(pos, h); !ok || bid.Load != 10 {
			t.Fatal(bid, ok)
		}
	}
	if st := p.Stats(); st.Calls != calls || st.Faults != [host.NumCauses]uint64{} || st.Replaced != 0 {
		t.Errorf("%+v", st)
	}
}

// TestDeferredWorkOfDeadInstances checks that deferred work is dropped for a dead instance,
// which replace replaces, and that the slot stays empty.
func TestDeferredWorkOfDeadInstances(t *testing.T) {
	p := stopped(t, Config{Instances: 1}, tiring(restMost))
	s := &p.slots[0]
	s.instance.Close()
	s.state.Store(empty)
	s.deferredDue.Store(true)
	p.runAllDeferred()
	wantSlot(t, s, empty, false)
}

// TestDeferredWorkIsRunOnce checks that Run leaves deferred work that a caller has run
// meanwhile, runs it otherwise, and frees the slot in both cases.
func TestDeferredWorkIsRunOnce(t *testing.T) {
	for _, meanwhile := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			p := stopped(t, Config{Instances: 1}, tiring(restMost))
			s := &p.slots[0]
			p.takeSlot(s)
			s.served = 700
			s.deferredDue.Store(true)
			go p.runAllDeferred()
			synctest.Wait()
			wantSlot(t, s, busy, true)
			s.deferredDue.Store(!meanwhile)
			p.release(s, free)
			time.Sleep(2 * patience)
			synctest.Wait()
			wantSlot(t, s, free, false)
			p.takeSlot(s)
			if (s.rested == 700) == meanwhile {
				t.Errorf("rested at call %d; a caller had run it: %v", s.rested, meanwhile)
			}
			p.release(s, free)
		})
	}
}

// TestDeferredWorkIsDue checks that Run is to do deferred work after restEvery calls, that
// the caller does it after restMost calls, and that calls count from the last time.
func TestDeferredWorkIsDue(t *testing.T) {
	for _, c := range []struct {
		served, rested uint64 // before a call
		due, ran       bool
	}{
		{restEvery - 2, 0, false, false}, {restEvery - 1, 0, true, false}, {restMost - 2, 0, true, false}, {restMost - 1, 0, false, true},
		{5*restMost + restEvery - 2, 5 * restMost, false, false}, {5*restMost + restEvery - 1, 5 * restMost, true, false},
	} {
		p := stopped(t, Config{Instances: 1}, tiring(restMost))
		s := &p.slots[0]
		s.served, s.rested = c.served, c.rested
		p.Select(bids(3))
		wantSlot(t, s, free, c.due)
		if ran := s.rested == s.served; ran != c.ran || len(p.refill) != map[bool]int{true: 1}[c.due] {
			t.Errorf("%+v: ran %v, Run is woken %d times", c, ran, len(p.refill))
		}
	}
	plain := stopped(t, Config{Instances: 1}, hosttest.LeastLoadModule())
	plain.slots[0].served = restMost
	plain.Select(bids(3))
	wantSlot(t, &plain.slots[0], free, false)
}

// TestRunDoesDeferredWork checks that Run does deferred work that is due.
func TestRunDoesDeferredWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := running(t, Config{Instances: 1}, host.Config{}, tiring(restMost))
		for range restEvery {
			p.Select(bids(3))
		}
		time.Sleep(2 * patience) // Run may have come while the last call had the slot
		synctest.Wait()
		s := &p.slots[0]
		wantSlot(t, s, free, false)
		p.takeSlot(s)
		if s.rested != restEvery {
			t.Errorf("done at call %d, want %d", s.rested, restEvery)
		}
		p.release(s, free)
	})
}

// TestDeferredWorkByKind checks that only modules that decide per request run deferred work
// between calls, if they have any.
func TestDeferredWorkByKind(t *testing.T) {
	guard := hosttest.Policy(
		hosttest.Function(abi.Guard.Export(), nil, hosttest.Result(0, 0)),
		hosttest.Function(abi.ExportDeferred, nil, hosttest.I64(0))).Encode()
	for name, c := range map[string]struct {
		code []byte
		want bool
	}{"bids": {tiring(restMost), true}, "bids without deferred work": {hosttest.LeastLoadModule(), false}, "plans": {guard, false}} {
		if p := stopped(t, Config{Instances: 1}, c.code); p.rests != c.want {
			t.Errorf("%s: %v", name, p.rests)
		}
	}
}
