package host

import (
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/outlier"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/place"
	"github.com/cascadeinfer/cascade/policies/policytest"
	"github.com/cascadeinfer/cascade/policies/refine"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// guest loads the Go guest. The tests share a cache, so that it is compiled once.
func guest(t testing.TB, c Config) *Module {
	t.Helper()
	code := hosttest.Guest(t)
	c.Cache = sharedCache
	return load(t, c, code)
}

// words makes random arguments of every kind.
type words struct{ *rand.Rand }

func (r words) tokens(n int) policies.Tokens { return policies.Tokens(r.IntN(n)) }

func (r words) bids() []policies.Bid {
	bids := make([]policies.Bid, r.IntN(20))
	for i := range bids {
		bids[i] = policies.Bid{From: policies.ReplicaID(fmt.Sprint("replica-", i)), Load: r.tokens(30), Start: policies.Micros(r.IntN(5))}
	}
	return bids
}

func (r words) ask() abi.Ask {
	return abi.Ask{
		Position: policies.Occupancy{Capacity: 1e6, Held: r.tokens(1e6), Promised: r.tokens(1e4), Incoming: r.tokens(1e6), Throughput: r.tokens(1e5), Draining: r.IntN(9) == 0},
		Handover: policies.Migration{Request: "request", Length: r.tokens(1e5), Cause: policies.Drain},
	}
}

func (r words) arrival() policies.Arrival {
	a := policies.Arrival{Request: policies.Request{ID: "r", Model: "m", Input: r.tokens(4000)}, Hops: r.IntN(2),
		Own: policies.Candidate{ID: "own", High: 2000, Waiting: r.tokens(20_000), Draining: r.IntN(9) == 0}}
	for i := range r.IntN(6) {
		low := policies.Tokens(r.IntN(2) * 2000)
		a.Peers = append(a.Peers, policies.Candidate{ID: policies.ReplicaID(fmt.Sprint("peer-", i)), Low: low, High: low + 2000,
			Waiting: r.tokens(20_000), Load: r.tokens(100), Prefix: r.tokens(3000)})
	}
	return a
}

func (r words) border() policies.BoundaryView {
	b := policies.BoundaryView{Boundary: 5000, High: policies.Unbounded, Peers: 1 + r.IntN(4), Successors: 1 + r.IntN(4),
		Cost: policies.Cost{D0: 0.01, D1: 1e-4, D2: 1e-5, D4: 1e-7}}
	for range r.IntN(60) {
		b.Local = append(b.Local, policies.Sequence{Input: r.tokens(5000), Length: r.tokens(5000)})
		b.Next = append(b.Next, policies.Sequence{Input: r.tokens(9000), Length: 5000 + r.tokens(20_000)})
	}
	return b
}

func (r words) plan() policies.Plan {
	p := policies.Plan{Model: "m", Epoch: policies.Epoch(r.Uint32())}
	for i := range 1 + r.IntN(4) {
		s := policies.Stage{Low: policies.Tokens(i * 100), High: policies.Tokens(i*100 + 100)}
		for k := range 1 + r.IntN(4) {
			s.Replicas = append(s.Replicas, policies.ReplicaID(fmt.Sprint("r", i, k)))
		}
		p.Stages = append(p.Stages, s)
	}
	return p
}

// TestGuestDecidesAsNative makes calls of every kind with random arguments to the guest and
// to the native policies, and compares the answers.
func TestGuestDecidesAsNative(t *testing.T) {
	i := instance(t, guest(t, Config{}))
	if err := i.Configure(abi.Call{}, []byte("well-behaved")); err != nil {
		t.Fatal(err)
	}
	r := words{rand.New(rand.NewPCG(3, 4))}
	for n := range uint64(400) {
		c := abi.Call{ID: n, Now: policies.Micros(n), Seed: r.Uint64()}
		bids := r.bids()
		if got, err := i.Select(c, bids); err != nil || got != (bidask.LeastLoad{}).Select(bids) {
			t.Fatalf("select: %d, %v", got, err)
		}
		ask := r.ask()
		bid, ok, err := i.Quote(c, ask)
		if want, bids := (bidask.Backlog{}).Quote(ask.Position, ask.Handover); err != nil || bid != want || ok != bids {
			t.Fatalf("quote: %+v, %v, %v; want %+v", bid, ok, err, want)
		}
		own, mean := r.tokens(1e6), r.tokens(1e6)
		if x, err := i.Excess(c, own, mean); err != nil || x != (outlier.Detector{}).Excess(own, mean) {
			t.Fatalf("excess: %d, %v", x, err)
		}
		a := r.arrival()
		if id, err := i.Place(c, a); err != nil || id != (place.Policy{}).Place(a) {
			t.Fatalf("place: %q, %v", id, err)
		}
		b := r.border()
		if at, err := i.Refine(c, b); err != nil || at != (refine.Weighted{}).Refine(b) {
			t.Fatalf("refine: %d, %v", at, err)
		}
		w := policytest.RandomWorkload(r.Rand)
		p, err := i.Partition(c, w)
		if len(p.Cuts) == 0 {
			p.Cuts = nil // as native
		}
		if want, none := (partition.Exact{}).Partition(w); !reflect.DeepEqual(p, want) || err != none {
			t.Fatalf("partition: %+v, %v; want %+v, %v", p, err, want, none)
		}
		ch := abi.Change{Now: r.plan(), Next: r.plan()}
		d, denied, err := i.Guard(c, ch)
		stage := -1
		for k, s := range ch.Next.Stages {
			if stage < 0 && len(s.Replicas) > 3 {
				stage = k
			}
		}
		if err != nil || denied != (stage >= 0) || denied && (d.Stage != stage || d.Code != 7 || d.Detail != "more than three replicas") {
			t.Fatalf("guard: %+v, %v, %v; want stage %d", d, denied, err, stage)
		}
	}
	now, first := i.Memory()
	t.Logf("memory %d KiB, %d KiB when it was new; the last guard took %d ticks", now>>10, first>>10, i.Fuel())
}

// TestGuestsThatMisbehave covers the faults of a Go guest, and their errors and logs.
func TestGuestsThatMisbehave(t *testing.T) {
	m := guest(t, Config{})
	for _, c := range []struct {
		mode  string
		cause Cause
		text  string
	}{
		{"panic", Trapped, "no bid pleases me"},
		{"index", Trapped, "index out of range"},
		{"recurse", OutOfFuel, ""},
		{"sleep", Trapped, "deadlock"},
	} {
		i := instance(t, m)
		if err := i.Configure(abi.Call{}, []byte(c.mode)); err != nil {
			t.Fatal(err)
		}
		_, err := i.Select(abi.Call{}, sixteen())
		f, ok := err.(*Fault)
		if !ok || f.Cause != c.cause || !strings.Contains(f.Text, c.text) || i.Dead() == nil {
			t.Errorf("%s: %v\n%+v", c.mode, err, f)
		}
	}
	// A guest that never frees memory ends at its memory limit.
	i := instance(t, m)
	i.Configure(abi.Call{}, []byte("hoard"))
	for n := 0; i.Dead() == nil; n++ {
		if _, err := i.Select(abi.Call{}, sixteen()); n > 2000 || err != nil && i.Dead() == nil {
			t.Fatalf("after %d calls: %v", n, err)
		}
	}
	if now, _ := i.Memory(); now > m.config.Meter.Pages<<16 {
		t.Errorf("the memory grew to %d bytes", now)
	}
}

// TestGuestCollectsItsGarbage checks that the collector of a guest that allocates 2 KiB a
// call keeps up for as long as the instance lives. It needs a clock that advances.
func TestGuestCollectsItsGarbage(t *testing.T) {
	var c Config
	c.Kinds = []abi.Kind{abi.Select}
	c.Limits[abi.Select].Fuel = 50_000_000
	i := instance(t, guest(t, c))
	i.Configure(abi.Call{}, []byte("churn"))
	calls := 50_000
	if os.Getenv("CASCADE_TEST_ALL") != "" {
		calls = 1_000_000
	}
	most := int64(0)
	for n := range calls {
		if _, err := i.Select(abi.Call{}, sixteen()); err != nil {
			t.Fatalf("call %d: %v", n, err)
		}
		most = max(most, i.Fuel())
	}
	now, first := i.Memory()
	t.Logf("%d MiB of garbage: memory %d KiB, %d KiB when it was new; at most %d ticks a call", calls/512, now>>10, first>>10, most)
}
