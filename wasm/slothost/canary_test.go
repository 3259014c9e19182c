package slothost

import (
	"regexp"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/policies/policytest"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// twoFaced decides bid-select as the native policy does for up to four bids, and selects
// the last bid otherwise.
func twoFaced(n int32) []byte {
	count := hosttest.Cat(hosttest.I32(0), hosttest.Load32(hosttest.Arena+28))
	return hosttest.LeastLoadModule(hosttest.I32(n), hosttest.Drop,
		count, hosttest.I32(4), hosttest.Op(0x4b), // more than
		hosttest.If(count, hosttest.I32(1), hosttest.Op(0x6b), hosttest.Op(0xad), hosttest.Return))
}

// rising returns bids of which the last is the worst.
func rising(n int) []policies.Bid {
	list := make([]policies.Bid, n)
	for i := range list {
		list[i] = policies.Bid{From: "r", Load: policies.Tokens(i * 10), Start: policies.Micros(i)}
	}
	return list
}

// TestWorseInCanary checks that a module that passes all its trials and decides worse in
// canary is rejected there, as soon as the difference is significant, whether the native
// policy or a module is active.
func TestWorseInCanary(t *testing.T) {
	for name, before := range map[string][]lifecycle.Candidate{
		"beside the native policy": nil,
		"beside a module":          {stable(t, 5, other(1))},
	} {
		t.Run(name, func(t *testing.T) {
			c := config(t)
			c.Gates[abi.Select] = Gates{Ladder: []int{500}, Shadow: Gate{Calls: 20, Soak: -1}, Canary: Gate{Calls: 50, Soak: -1}}
			s, _ := running(t, c)
			in := lifecycle.Native
			apply(t, s, want(before...))
			if before != nil {
				in = 5
				waitFor(t, "the module is in force", func() bool { return s.Status()[0].Active == in })
			}
			apply(t, s, want(append(before, candidate(t, 9, lifecycle.ToActive, twoFaced(0)))...))
			n := 0
			waitFor(t, "it is in canary", func() bool {
				s.Selector().Select(rising(1 + n%4))
				n++
				return phase(s, 9) == "canary"
			})
			waitFor(t, "it is taken back", func() bool {
				list := rising(5 + n%20) // so that the module decides its share
				list[0].Load -= policies.Tokens(n)
				s.Selector().Select(list)
				n++
				return phase(s, 9) != "canary"
			})
			l := statusOf(s, abi.Select, 9)
			if l.Phase != lifecycle.Rejected || !regexp.MustCompile(`^at 500 ‰: \d+ of \d+ answers are worse than the active policy's, at most 20 ‰ may be$`).MatchString(l.Reason) {
				t.Errorf("%+v", l)
			}
			if f := l.Figures; f.Compared < f.Worse || f.Worse != f.Differ || f.Worse < 2 || f.Faults != 0 {
				t.Errorf("%+v", f)
			}
			if st := s.Status()[0]; st.Active != in || st.Candidate != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// TestWorseInScope checks that a refiner's canary is one scope, and is compared as well.
func TestWorseInScope(t *testing.T) {
	// The boundary stays where no replica has work, as with the native policy;
	// otherwise it goes as low as permitted.
	word := func(at uint32) []byte { return hosttest.Cat(hosttest.I32(0), hosttest.Load32(hosttest.Arena+at)) }
	put := func(v ...[]byte) []byte {
		return hosttest.Cat(word(56), hosttest.I32(hosttest.Arena), hosttest.Add, hosttest.Cat(v...), hosttest.Store64(0), hosttest.I64(8), hosttest.Return)
	}
	arg := func(at uint32) []byte {
		return hosttest.Cat(word(16), hosttest.I32(hosttest.Arena), hosttest.Add, hosttest.Load64(at))
	}
	low := hosttest.Policy(hosttest.Function("cs_refine_v1", nil,
		word(28), hosttest.If(put(arg(8), hosttest.I64(1), hosttest.Op(0x7c))),
		put(arg(0)))).Encode()
	c := config(t)
	c.Kinds = []abi.Kind{abi.Refine}
	c.Gates[abi.Refine] = Gates{Shadow: Gate{Calls: 5, Soak: -1}, Canary: Gate{Calls: 5, Soak: -1}}
	s, _ := running(t, c)
	cand := signedFor(t, 9, lifecycle.ToActive, low, abi.Refine)
	cand.Scope = "rack-7"
	apply(t, s, specOf(abi.Refine, cand))
	quiet := policies.BoundaryView{Boundary: 4000, Low: 10, High: policies.Unbounded, Peers: 2, Successors: 2, QoE: policytest.H200QoE()}
	busy := quiet
	for i := range 64 {
		busy.Local = append(busy.Local, policies.Sequence{Input: 2000, Length: policies.Tokens(2000 + i)})
		busy.Next = append(busy.Next, policies.Sequence{Input: 3000, Length: policies.Tokens(5000 + i)})
	}
	of := func() lifecycle.Status { return statusOf(s, abi.Refine, 9) }
	waitFor(t, "it is in canary", func() bool {
		if got := s.Refiner("rack-7").Refine(quiet); got != quiet.Boundary {
			t.Fatalf("%d", got)
		}
		return of().Phase == lifecycle.Canary
	})
	native := natives.Refiner.Refine(busy)
	if a, b := s.Refiner("rack-7").Refine(busy), s.Refiner("rack-8").Refine(busy); a != busy.Low+1 || b != native || native == a {
		t.Errorf("%d in its scope, %d elsewhere; want %d, %d", a, b, busy.Low+1, native)
	}
	if st := s.Status()[0]; st.Scope != "rack-7" || st.Candidate != 9 {
		t.Errorf("%+v", st)
	}
	waitFor(t, "it is taken back", func() bool {
		s.Refiner("rack-8").Refine(busy)
		s.Refiner("rack-7").Refine(busy)
		return of().Phase != lifecycle.Canary
	})
	if l := of(); l.Phase != lifecycle.Rejected || !regexp.MustCompile(`^at scope "rack-7": [1-9]\d* of \d+ answers are worse`).MatchString(l.Reason) {
		t.Errorf("%+v", l)
	}
}
