package slothost

import (
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// routeTo returns the route to one generation.
func routeTo(g lifecycle.Generation) route { return route{active: g} }

// entered returns the module that a call for a winner gets, which it does not leave.
func entered(s *slot) *module { return newCaller(s, &selectKind, "", nil).enter(bids(3, 1)) }

// TestFaultTakesEffectAtOnce checks that no call gets the module once its last tolerated fault
// is reported, that the previous one takes over, and that the module is closed after its last
// call.
func TestFaultTakesEffectAtOnce(t *testing.T) {
	c := config(t)
	c.Gates[abi.Select].Faults = 2
	slots, _ := running(t, c)
	s := slots.slots[abi.Select]
	for g := lifecycle.Generation(4); g <= 5; g++ {
		apply(t, slots, want(stable(t, g, other(int32(g)))))
		waitFor(t, "it is active", func() bool { return slots.Status()[0].Active == g })
	}
	held := entered(s)
	s.fault(5, host.ErrClosed)
	if m := entered(s); m != held {
		t.Fatal("one fault is not tolerated")
	}
	held.inUse.Done()
	s.fault(5, host.ErrClosed)
	if m := entered(s); m == nil || m.generation != 4 {
		t.Fatalf("after two faults: %+v", m)
	} else {
		m.inUse.Done()
	}
	if _, ok := askModule(held, &selectKind, nil, bids(3, 1)); !ok || statusOf(slots, abi.Select, 5).Phase != lifecycle.Rejected {
		t.Error("a module was closed under a call")
	}
	held.inUse.Done()
	waitFor(t, "it is closed", func() bool { return held.host.Instances() == 0 })
	s.step(func(m *machine) { m.rollBack(4, "by hand") })
	if m := entered(s); m != nil {
		t.Errorf("after the rollback: %d", m.generation)
	}
}

// TestEndWaitsForCalls checks that Run does not free a module with a call in progress, that
// the native policy answers meanwhile and afterwards, and that a slot that has ended takes no
// offers.
func TestEndWaitsForCalls(t *testing.T) {
	slots, stop := running(t, config(t))
	s := slots.slots[abi.Select]
	apply(t, slots, want(stable(t, 5, other(1))))
	waitFor(t, "it is active", func() bool { return slots.Status()[0].Active == 5 })
	held := entered(s)
	ended := make(chan struct{})
	go func() { stop(); close(ended) }()
	testkit.WaitFor(t, "the native policy decides", func() bool {
		m := entered(s)
		if m != nil {
			m.inUse.Done()
		}
		return m == nil
	})
	if _, ok := askModule(held, &selectKind, nil, bids(3, 1)); !ok {
		t.Error("closed under a call")
	}
	select {
	case <-ended:
		t.Error("Run ended before its calls")
	default:
	}
	held.inUse.Done()
	testkit.WaitForEvent(t, "Run ends", ended)
	s.fault(5, host.ErrClosed)
	ask(t, slots, 1)
	if slots.Apply(want(stable(t, 6, other(2)))) == nil {
		t.Error("a slot that has ended takes offers")
	}
}

// TestNewerCancels checks that a newer module ends the build of an older one.
func TestNewerCancels(t *testing.T) {
	slots, _ := running(t, config(t))
	s := slots.slots[abi.Select]
	slots.building.Lock() // a build is in progress
	apply(t, slots, want(candidate(t, 5, lifecycle.ToShadow, other(2))))
	waitFor(t, "its job has begun", func() bool { return len(s.jobs) == 0 })
	apply(t, slots, want(candidate(t, 6, lifecycle.ToShadow, other(3))))
	slots.building.Unlock()
	waitFor(t, "the newer one is in shadow", func() bool { return phase(slots, 6) == "shadow" })
	if got := statusOf(slots, abi.Select, 5); got.Phase != lifecycle.Withdrawn || slots.engine.Compiled() != 1 {
		t.Errorf("%+v, %d modules were compiled", got, slots.engine.Compiled())
	}
}
