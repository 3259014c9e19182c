package plugins_test

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/outlier"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/place"
	"github.com/cascadeinfer/cascade/policies/policytest"
	"github.com/cascadeinfer/cascade/policies/refine"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest/guesttest"
)

// mostBytes bounds a plugin. A dependency on fmt or reflect would add a megabyte
// and more.
const mostBytes = 2100 << 10

// rounds is how many random words each policy is compared on.
const rounds = 300

// plugins are all there are, with their native policies: as they are, and as the
// configuration makes them.
var plugins = []struct {
	name   string
	kinds  []abi.Kind
	plain  any
	config string
	set    any
}{
	{"partition-exact", []abi.Kind{abi.Partition}, partition.Exact{}, "", nil},
	{"partition-recursion", []abi.Kind{abi.Partition}, partition.Recursion{}, "", nil},
	{"partition-two-phase", []abi.Kind{abi.Partition}, partition.TwoPhase{}, "", nil},
	{"partition-paper", []abi.Kind{abi.Partition}, partition.TwoPhase{Model: partition.Snapshot}, "", nil},
	{"refine-weighted", []abi.Kind{abi.Configure, abi.Refine}, refine.Weighted{}, "smoothing 900\nfreeze 1", refine.Weighted{Damping: refine.Damping{Smoothing: 900, Freeze: 1}}},
	{"refine-paper", []abi.Kind{abi.Configure, abi.Refine}, refine.Paper{}, "smoothing 900\nfreeze 1", refine.Paper{Damping: refine.Damping{Smoothing: 900, Freeze: 1}}},
	{"bid-least-load", []abi.Kind{abi.Configure, abi.Quote, abi.Select}, market{bidask.Backlog{}, bidask.LeastLoad{}}, "quantum 7\nthroughput 1000",
		market{bidask.Backlog{Quantum: 7, Throughput: 1000}, bidask.LeastLoad{}}},
	{"bid-paper", []abi.Kind{abi.Configure, abi.Quote, abi.Select}, market{bidask.Backlog{}, bidask.Paper{}}, "keep 1", market{bidask.Backlog{}, bidask.Paper{Keep: 1}}},
	{"outlier", []abi.Kind{abi.Configure, abi.Outlier}, outlier.Detector{}, "percent 80 # not 25\nleast 100", outlier.Detector{Percent: 80, Least: 100}},
	{"place", []abi.Kind{abi.Configure, abi.Place}, place.Policy{}, "queue 500\nprefix 10", place.Policy{Queue: 500, Prefix: 10}},
}

// market is both policies of the bids.
type market struct {
	policies.Quoter
	policies.Selector
}

// TestPluginsDecideAsNative compares each policy with its module.
func TestPluginsDecideAsNative(t *testing.T) {
	for _, p := range plugins {
		t.Run(p.name, func(t *testing.T) {
			code := guesttest.Build(t, p.name)
			if len(code) > mostBytes {
				t.Errorf("the module has %d bytes, at most %d are expected", len(code), mostBytes)
			}
			g := guesttest.New(t, code)
			var kinds []abi.Kind
			for k := range abi.Kinds {
				if g.Has(k) {
					kinds = append(kinds, k)
				}
			}
			if !reflect.DeepEqual(kinds, p.kinds) {
				t.Fatalf("the module decides %v, want %v", kinds, p.kinds)
			}
			compare(t, g, p.plain)
			if p.config == "" {
				return
			}
			g = guesttest.New(t, code)
			if err := g.Configure("nonsense 1"); err != abi.Failed || len(g.Said) != 1 {
				t.Errorf("a setting that there is not: %v, %q", err, g.Said)
			}
			if err := g.Configure(p.config); err != nil {
				t.Fatal(err, g.Said)
			}
			compare(t, g, p.set)
		})
	}
}

// compare has a module and a native policy decide the same random words, every
// kind that the policy knows.
func compare(t *testing.T, g *guesttest.Guest, native any) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	tokens := func(n int) policies.Tokens { return policies.Tokens(r.IntN(n)) }
	for range rounds {
		if p, ok := native.(policies.Selector); ok {
			bids := make([]policies.Bid, r.IntN(90))
			for i := range bids {
				bids[i] = policies.Bid{From: "replica", Load: tokens(30), Start: policies.Micros(r.IntN(5))}
			}
			if i, err := g.Select(bids); err != nil || i != p.Select(bids) {
				t.Fatalf("select: %d, %v; want %d", i, err, p.Select(bids))
			}
		}
		if p, ok := native.(policies.Quoter); ok {
			ask := abi.Ask{
				Position: policies.Position{Capacity: 1e6, Held: tokens(1e6), Incoming: tokens(1e6), Throughput: tokens(2) * tokens(1e5)},
				Handover: policies.Handover{Request: "x", Length: tokens(1e5), Cause: policies.Drain},
			}
			want, bids := p.Quote(ask.Position, ask.Handover)
			if got, ok, err := g.Quote(ask); err != nil || got != want || ok != bids {
				t.Fatalf("quote: %+v, %v, %v; want %+v", got, ok, err, want)
			}
		}
		if p, ok := native.(policies.Detector); ok {
			own, mean := tokens(2000), tokens(1000)
			if x, err := g.Excess(own, mean); err != nil || x != p.Excess(own, mean) {
				t.Fatalf("outlier: %d, %v", x, err)
			}
		}
		if p, ok := native.(policies.Placer); ok {
			a := arrival(r)
			if id, err := g.Place(a); err != nil || id != p.Place(a) {
				t.Fatalf("place: %q, %v; want %q", id, err, p.Place(a))
			}
		}
		if p, ok := native.(policies.Refiner); ok {
			b := border(r)
			if at, err := g.Refine(b); err != nil || at != p.Refine(b) {
				t.Fatalf("refine: %d, %v; want %d", at, err, p.Refine(b))
			}
		}
		if p, ok := native.(policies.Partitioner); ok {
			w := policytest.Random(r)
			want, wrong := p.Partition(w)
			got, err := g.Partition(w)
			if err != wrong || err == nil && !same(got, want) {
				t.Fatalf("partition: %+v, %v; want %+v, %v", got, err, want, wrong)
			}
		}
	}
}

// same compares partitions; an answer has no cuts where the native one has nil.
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
		Own: policies.Site{ID: "own", High: 2000, Waiting: tokens(20_000), Draining: r.IntN(9) == 0},
	}
	for i := range r.IntN(100) {
		low := policies.Tokens(r.IntN(2) * 2000)
		a.Peers = append(a.Peers, policies.Site{ID: policies.ReplicaID(rune('a' + i)), Low: low, High: low + 2000, Waiting: tokens(20_000), Load: tokens(100), Prefix: tokens(3000)})
	}
	return a
}

func border(r *rand.Rand) policies.Border {
	tokens := func(n int) policies.Tokens { return policies.Tokens(r.IntN(n)) }
	b := policies.Border{Boundary: 5000, High: policies.Unbounded, Peers: 1 + r.IntN(4), Successors: 1 + r.IntN(4), Cost: policytest.H20()}
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
