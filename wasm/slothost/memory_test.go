package slothost

import (
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// counting returns a refiner that proposes low+1, low+2 and so on, from a count that it
// keeps as its state. It traps on a boundary of 99. Modules of different n have different
// digests.
func counting(n int32) []byte {
	const state, count = 1, 2
	word := func(at uint32) []byte { return hosttest.Cat(hosttest.I32(0), hosttest.Load32(hosttest.Arena+at)) }
	in := func(at uint32) []byte { return hosttest.Cat(word(at), hosttest.I32(hosttest.Arena), hosttest.Add) }
	return hosttest.Policy(hosttest.Function("cs_refine_v1", []byte{hosttest.TypeI32, hosttest.TypeI64},
		hosttest.I32(n), hosttest.Drop,
		in(16), hosttest.Load64(0), hosttest.I64(99), hosttest.Op(0x51), hosttest.If(hosttest.Unreachable),
		in(44), hosttest.Set(state),
		word(48), hosttest.If(hosttest.Get(state), hosttest.Load64(0), hosttest.Set(count)),
		hosttest.Get(state), hosttest.Get(count), hosttest.I64(1), hosttest.Op(0x7c), hosttest.Tee(count), hosttest.Store64(0),
		hosttest.I32(0), hosttest.I32(8), hosttest.Store32(hosttest.Arena+48),
		in(56), in(16), hosttest.Load64(8), hosttest.Get(count), hosttest.Op(0x7c), hosttest.Store64(0),
		hosttest.I64(8))).Encode()
}

// TestState checks that a module gets its state at the next call for the same replica,
// whichever instance or generation of it answers, and never that of another module.
func TestState(t *testing.T) {
	c := config(t)
	c.Kinds = []abi.Kind{abi.Refine}
	c.Gates[abi.Refine] = Gates{Shadow: Gate{Calls: 5, Soak: -1}, Faults: 1000}
	s, _ := running(t, c)
	run := func(generation lifecycle.Generation, module []byte) {
		t.Helper()
		apply(t, s, specOf(abi.Refine, stableOf(signedFor(t, generation, lifecycle.ToActive, module, abi.Refine))))
		waitFor(t, "it is active", func() bool { return s.Status()[0].Active == generation })
	}
	border := policies.BoundaryView{Boundary: 4000, Low: 10, High: policies.Unbounded, Peers: 2, Successors: 2}
	a, b := s.Refiner("rack-7"), s.Refiner("rack-7")
	asked := func(r policies.Refiner, want policies.Tokens) {
		t.Helper()
		if got := r.Refine(border); got != 10+want {
			t.Errorf("the %dth call is the %dth to the module", want, got-10)
		}
	}
	run(5, counting(1))
	asked(a, 1)
	asked(a, 2)
	asked(b, 1) // the state of another replica
	// The instance dies; its state is kept.
	trap := border
	trap.Boundary = 99
	if got := a.Refine(trap); got != natives.Refiner.Refine(trap) {
		t.Errorf("a call that trapped: %d", got)
	}
	waitFor(t, "there is another instance", func() bool { return b.Refine(border) < 4000 })
	asked(a, 3)
	// Another module starts without state; then the first one, in a new generation.
	run(6, counting(2))
	asked(a, 1)
	run(7, counting(1))
	asked(a, 4)
	asked(a, 5)
}

// TestStateInShadow checks that a module in shadow keeps its own state from call to call.
func TestStateInShadow(t *testing.T) {
	c := config(t)
	c.Kinds = []abi.Kind{abi.Refine}
	c.Native.Refiner = &counts{}
	c.Gates[abi.Refine] = Gates{Shadow: Gate{Calls: 20, Soak: -1, Worse: 1000}}
	s, _ := running(t, c)
	module := counting(1)
	one := signedFor(t, 5, lifecycle.ToCanary, module, abi.Refine)
	one.Scope = "rack-7"
	apply(t, s, specOf(abi.Refine, one))
	waitFor(t, "it is in shadow", func() bool { return statusOf(s, abi.Refine, 5).Phase == lifecycle.Shadow })
	r := s.Refiner("rack-8")
	for n := range uint64(20) { // few enough that no record is overwritten
		r.Refine(policies.BoundaryView{Boundary: 4000, Low: 10, High: policies.Unbounded, Peers: 2, Successors: 2})
		waitFor(t, "it is tried", func() bool {
			l := statusOf(s, abi.Refine, 5)
			return l.Phase != lifecycle.Shadow || l.Figures.Calls > n
		})
	}
	if l := statusOf(s, abi.Refine, 5); l.Phase != lifecycle.Canary {
		t.Errorf("%+v", l)
	}
}

// counts decides as the module does. It is not safe for concurrent use.
type counts struct{ n policies.Tokens }

func (c *counts) Refine(b policies.BoundaryView) policies.Tokens { c.n++; return b.Low + c.n }
