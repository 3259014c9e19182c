package slothost

import (
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest/guesttest"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// TestCallsDoNotAllocate covers native policies, an active module, and a candidate that
// decides for some requests.
func TestCallsDoNotAllocate(t *testing.T) {
	testkit.SkipUnderRace(t)
	guest := hosttest.Guest(t)
	c := config(t)
	c.Kinds = []abi.Kind{abi.Quote, abi.Select, abi.Outlier, abi.Place}
	c.Cache, c.Every = hosttest.Cache(t), 4
	for _, k := range c.Kinds {
		c.Gates[k] = quick(1)
		c.Gates[k].Canary.Calls = 1 << 40
	}
	s, _ := running(t, c)
	words := bids(16, 1)
	arrival := policies.Arrival{Request: policies.Request{ID: "r"}, Own: policies.Candidate{ID: "own"}, Peers: []policies.Candidate{{ID: "a"}, {ID: "b"}}}
	selector, quoter, detector, placer := s.Selector(), s.Quoter(), s.Detector(), s.Placer()
	all := func() {
		selector.Select(words)
		quoter.Quote(policies.Occupancy{Capacity: 1e6, Throughput: 1e5}, policies.Migration{Request: "r", Length: 100, Cause: policies.Spill})
		detector.Excess(1000, 10)
		placer.Place(arrival)
	}
	measure := func(who string) {
		t.Helper()
		for range 4096 { // so that the memory of the records is allocated
			all()
		}
		if n := testing.AllocsPerRun(500, all); n != 0 {
			t.Errorf("%s: %v allocations", who, n)
		}
	}
	measure("native")
	first, second := stableOf(signedFor(t, 1, lifecycle.ToActive, guest, c.Kinds...)), signedFor(t, 2, lifecycle.ToActive, guest, c.Kinds...)
	for _, k := range c.Kinds {
		apply(t, s, specOf(k, first))
	}
	for _, k := range c.Kinds {
		waitFor(t, k.String()+" is active", func() bool { return statusOf(s, k, 1).Phase == lifecycle.Active })
	}
	measure("module")
	for _, k := range c.Kinds {
		apply(t, s, specOf(k, first, second))
	}
	for _, k := range c.Kinds {
		waitFor(t, k.String()+" has a canary", func() bool { all(); return statusOf(s, k, 2).Phase == lifecycle.Canary })
	}
	measure("canary")
}

// BenchmarkSelect measures one decision over 16 bids through Slots.
func BenchmarkSelect(b *testing.B) {
	words := bids(16, 1)
	for _, who := range []string{"direct", "native", "small", "go", "canary"} {
		b.Run(who, func(b *testing.B) {
			c := config(b)
			c.Every, c.Logger, c.Tick = 64, nil, 0
			c.Cache = hosttest.Cache(b)
			c.Gates[abi.Select] = Gates{Ladder: []int{500}, Shadow: Gate{Calls: 1, Soak: -1}, Canary: Gate{Calls: 1 << 60}}
			s, _ := running(b, c)
			selector := s.Selector()
			switch who {
			case "direct":
				selector = bidask.LeastLoad{}
			case "small", "go", "canary":
				code := other(1)
				if who == "go" {
					code = guesttest.Build(b, "../plugins/bid-least-load.go")
				}
				apply(b, s, want(stable(b, 1, code)))
				waitFor(b, "active", func() bool { return phase(s, 1) == "active" })
				if who == "canary" {
					apply(b, s, want(stable(b, 1, code), candidate(b, 2, lifecycle.ToActive, other(2))))
					waitFor(b, "in canary", func() bool { selector.Select(words); return phase(s, 2) == "canary" })
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				selector.Select(words)
			}
		})
	}
}
