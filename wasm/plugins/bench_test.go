package plugins_test

import (
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest/guesttest"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// costTheSame checks that the fuel of a bid depends only on its frame, not on earlier calls:
// no garbage remains, whose collection would cost more than the limit of a call.
func costTheSame(t *testing.T, g *host.Instance) {
	const calls = 20_000
	ask := abi.QuoteArgs{Occupancy: policies.Occupancy{Capacity: 1e6, Held: 1000}, Migration: policies.Migration{Request: "front/1", Length: 77}}
	bids := hosttest.Bids(16)
	var first [2]int64
	for i := range calls {
		if _, err := g.Select(abi.Call{}, bids); err != nil {
			t.Fatal(err)
		}
		chosen := g.Fuel()
		if _, _, err := g.Quote(abi.Call{}, ask); err != nil {
			t.Fatal(err)
		}
		used := [2]int64{chosen, g.Fuel()}
		if i == 0 {
			first = used
		}
		if used != first {
			t.Fatalf("call %d takes %d ticks, the first took %d", i, used, first)
		}
	}
	t.Logf("%d ticks to select among 16, %d to quote", first[0], first[1])
}

// BenchmarkBids measures a decision end to end: encode, arm, call, check.
func BenchmarkBids(b *testing.B) {
	for _, name := range []string{"bid-least-load", "bid-paper"} {
		g := guesttest.Start(b, guesttest.Load(b, guesttest.Build(b, name+".go"), host.Config{}))
		bids := hosttest.Bids(16)
		b.Run(name+"/select16", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := g.Select(abi.Call{ID: 7}, bids); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/quote", func(b *testing.B) {
			ask := abi.QuoteArgs{Occupancy: policies.Occupancy{Capacity: 100_000, Held: 5000}, Migration: policies.Migration{Request: "replica-a/17", Length: 5000}}
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := g.Quote(abi.Call{ID: 7}, ask); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
