package guesttest

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/policytest"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// rounds is the number of random calls of each kind.
const rounds = 200

// Compare makes an instance and a native policy decide the same random arguments, for
// every kind whose interface the native policy implements, and fails the test at the
// first difference.
func Compare(t testing.TB, g *host.Instance, native any) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	tokens := func(n int) policies.Tokens { return policies.Tokens(r.IntN(n)) }
	for range rounds {
		if p, ok := native.(policies.Selector); ok {
			bids := make([]policies.Bid, r.IntN(90))
			for i := range bids {
				bids[i] = policies.Bid{From: "replica", Load: tokens(30), Start: policies.Micros(r.IntN(5))}
			}
			if i, err := g.Select(abi.Call{}, bids); err != nil || i != p.Select(bids) {
				t.Fatalf("select: %d, %v; want %d", i, err, p.Select(bids))
			}
		}
		if p, ok := native.(policies.Quoter); ok {
			ask := abi.Ask{
				Position: policies.Occupancy{Capacity: 1e6, Held: tokens(1e6), Incoming: tokens(1e6), Throughput: tokens(2) * tokens(1e5)},
				Handover: policies.Migration{Request: "x", Length: tokens(1e5), Cause: policies.Drain},
			}
			want, bids := p.Quote(ask.Position, ask.Handover)
			if got, ok, err := g.Quote(abi.Call{}, ask); err != nil || got != want || ok != bids {
				t.Fatalf("quote: %+v, %v, %v; want %+v", got, ok, err, want)
			}
		}
		if p, ok := native.(policies.Detector); ok {
			own, mean := tokens(2000), tokens(1000)
			if x, err := g.Excess(abi.Call{}, own, mean); err != nil || x != p.Excess(own, mean) {
				t.Fatalf("outlier: %d, %v", x, err)
			}
		}
		if p, ok := native.(policies.Placer); ok {
			a := arrival(r)
			if id, err := g.Place(abi.Call{}, a); err != nil || id != p.Place(a) {
				t.Fatalf("place: %q, %v; want %q", id, err, p.Place(a))
			}
		}
		if p, ok := native.(policies.Refiner); ok {
			b := border(r)
			if at, err := g.Refine(abi.Call{}, b); err != nil || at != p.Refine(b) {
				t.Fatalf("refine: %d, %v; want %d", at, err, p.Refine(b))
			}
		}
		if p, ok := native.(policies.Partitioner); ok {
			w := policytest.RandomWorkload(r)
			want, wrong := p.Partition(w)
			got, err := g.Partition(abi.Call{}, w)
			if err != wrong || err == nil && !same(got, want) {
				t.Fatalf("partition: %+v, %v; want %+v, %v", got, err, want, wrong)
			}
		}
	}
}

// same compares partitions. It treats empty cuts and nil as equal.
func same(a, b policies.Partition) bool {
	if len(a.Cuts) == 0 && len(b.Cuts) == 0 {
		a.Cuts, b.Cuts = nil, nil
	}
	return reflect.DeepEqual(a, b)
}

func arrival(r *rand.Rand) policies.Arrival {
	tokens := func(n int) policies.Tokens { return policies.Tokens(r.IntN(n)) }
	a := policies.Arrival{
		Request: policies.Request{ID: "front/1", Model: "m", Input: tokens(4000), Estimated: r.IntN(2) == 0}, Hops: r.IntN(2),
		Own: policies.Candidate{ID: "own", High: 2000, Waiting: tokens(20_000), Draining: r.IntN(9) == 0},
	}
	for i := range r.IntN(100) {
		low := policies.Tokens(r.IntN(2) * 2000)
		a.Peers = append(a.Peers, policies.Candidate{ID: policies.ReplicaID(rune('a' + i)), Low: low, High: low + 2000, Waiting: tokens(20_000), Load: tokens(100), Prefix: tokens(3000)})
	}
	return a
}

func border(r *rand.Rand) policies.BoundaryView {
	tokens := func(n int) policies.Tokens { return policies.Tokens(r.IntN(n)) }
	b := policies.BoundaryView{Boundary: 5000, High: policies.Unbounded, Peers: 1 + r.IntN(4), Successors: 1 + r.IntN(4), Cost: policytest.H20Cost()}
	if r.IntN(2) == 0 {
		b.Low, b.High = 4000, 9000
	}
	n := 8
	if r.IntN(20) == 0 {
		n = 3000 // more than the module's region holds at first
	}
	for range r.IntN(n) {
		b.Local = append(b.Local, policies.Sequence{Input: tokens(5000), Length: tokens(5000)})
		b.Next = append(b.Next, policies.Sequence{Input: tokens(9000), Length: 5000 + tokens(20_000)})
	}
	return b
}
