package hosttest

import (
	"fmt"
	"math/rand/v2"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/place"
	"github.com/cascadeinfer/cascade/policies/policytest"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

// Guard judges plans, as policy.Guard does.
type Guard interface {
	Guard(abi.Change) (abi.Denial, bool)
}

// Policies has a policy of every kind, or of those that a test calls.
type Policies struct {
	policies.Partitioner
	policies.Refiner
	policies.Quoter
	policies.Selector
	policies.Detector
	policies.Placer
	Guard
}

// Every returns p as the policy of every kind whose interface it implements.
func Every(p any) (all Policies) {
	all.Partitioner, _ = p.(policies.Partitioner)
	all.Refiner, _ = p.(policies.Refiner)
	all.Quoter, _ = p.(policies.Quoter)
	all.Selector, _ = p.(policies.Selector)
	all.Detector, _ = p.(policies.Detector)
	all.Placer, _ = p.(policies.Placer)
	all.Guard, _ = p.(Guard)
	return all
}

// Decides reports whether there is a policy of the kind.
func (p *Policies) Decides(k abi.Kind) bool {
	return [abi.NumKinds]bool{false, p.Partitioner != nil, p.Refiner != nil, p.Quoter != nil, p.Selector != nil, p.Detector != nil, p.Placer != nil, p.Guard != nil}[k]
}

// Native decides every kind as the Go guest does.
type Native struct {
	partition.Exact
	partition.WeightedRefiner
	bidask.Backlog
	bidask.LeastLoad
	bidask.Detector
	place.Policy
}

// Guard denies stages of more than three replicas.
func (Native) Guard(ch abi.Change) (abi.Denial, bool) {
	for i, stage := range ch.Next.Stages {
		if len(stage.Replicas) > 3 {
			return abi.Denial{Code: 7, Stage: i, Detail: "more than three replicas"}, true
		}
	}
	return abi.Denial{}, false
}

// Bids returns n bids, always the same.
func Bids(n int) []policies.Bid {
	bids := make([]policies.Bid, n)
	for i := range bids {
		bids[i] = policies.Bid{From: policies.ReplicaID("replica-" + string(rune('a'+i%26))), Load: policies.Tokens((i*7919 + 13) % 1000), Start: policies.Micros(i)}
	}
	return bids
}

// Random makes random arguments of every kind.
type Random struct{ *rand.Rand }

// NewRandom returns a Random with a seed.
func NewRandom(seed uint64) Random { return Random{rand.New(rand.NewPCG(seed, 1))} }

// Tokens returns a number below n.
func (r Random) Tokens(n int) policies.Tokens { return policies.Tokens(r.IntN(n)) }

// Bids returns up to 90 bids, with ties.
func (r Random) Bids() []policies.Bid {
	bids := make([]policies.Bid, r.IntN(90))
	for i := range bids {
		bids[i] = policies.Bid{From: policies.ReplicaID(fmt.Sprint("replica-", i)), Load: r.Tokens(30), Start: policies.Micros(r.IntN(5))}
	}
	return bids
}

// QuoteArgs returns the arguments of a quote.
func (r Random) QuoteArgs() abi.QuoteArgs {
	return abi.QuoteArgs{
		Occupancy: policies.Occupancy{Capacity: 1e6, Held: r.Tokens(1e6), Promised: r.Tokens(1e4), Incoming: r.Tokens(1e6), Throughput: r.Tokens(2) * r.Tokens(1e5), Draining: r.IntN(9) == 0},
		Migration: policies.Migration{Request: fmt.Sprint("request-", r.Uint32()), Length: r.Tokens(1e5), Cause: policies.Drain},
	}
}

// Loads returns the arguments of an outlier call.
func (r Random) Loads() abi.Loads { return abi.Loads{Own: r.Tokens(2000), Mean: r.Tokens(1000)} }

// Arrival returns an arrival with up to 100 peers of two stages.
func (r Random) Arrival() policies.Arrival {
	a := policies.Arrival{
		Request: policies.Request{ID: fmt.Sprint("front/", r.Uint32()), Model: "m", Input: r.Tokens(4000), Estimated: r.IntN(2) == 0}, Hops: r.IntN(2),
		Own: policies.Candidate{ID: "own", High: 2000, Waiting: r.Tokens(20_000), Draining: r.IntN(9) == 0, Running: r.IntN(40), Price: r.Int64N(20)},
	}
	for i := range r.IntN(100) {
		low := policies.Tokens(r.IntN(2) * 2000)
		a.Peers = append(a.Peers, policies.Candidate{ID: policies.ReplicaID(fmt.Sprint("peer-", i)), Low: low, High: low + 2000,
			Waiting: r.Tokens(20_000), Load: r.Tokens(100) * 500, Prefix: r.Tokens(3000), Running: r.IntN(40), Price: r.Int64N(20)})
	}
	return a
}

// Boundary returns a view of a boundary, sometimes with more requests than a guest's arena
// has room for at first.
func (r Random) Boundary() policies.BoundaryView {
	b := policies.BoundaryView{Boundary: 5000, High: policies.Unbounded, Peers: 1 + r.IntN(4), Successors: 1 + r.IntN(4), QoE: policytest.H200QoE()}
	if r.IntN(2) == 0 {
		b.Low, b.High = 4000, 9000
	}
	n := 8
	if r.IntN(20) == 0 {
		n = 3000
	}
	for range r.IntN(n) {
		b.Local = append(b.Local, policies.Sequence{Input: r.Tokens(5000), Length: r.Tokens(5000)})
		b.Next = append(b.Next, policies.Sequence{Input: r.Tokens(9000), Length: 5000 + r.Tokens(20_000)})
	}
	return b
}

// Change returns two plans of up to four stages, with up to four replicas each.
func (r Random) Change() abi.Change {
	plan := func() policies.Plan {
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
	return abi.Change{Now: plan(), Next: plan()}
}

// Compare makes a random call of a kind to both policies, and returns an error if the
// answers differ.
func (r Random) Compare(k abi.Kind, got, want Policies) error {
	switch k {
	case abi.Partition:
		w := policytest.RandomWorkload(r.Rand)
		return same(k, w, func(p Policies) any {
			part, err := p.Partition(w)
			return abi.PartitionAnswer{Partition: part, Err: err}
		}, got, want)
	case abi.Refine:
		b := r.Boundary()
		return same(k, b, func(p Policies) any { return p.Refine(b) }, got, want)
	case abi.Quote:
		q := r.QuoteArgs()
		return same(k, q, func(p Policies) any {
			bid, bids := p.Quote(q.Occupancy, q.Migration)
			return abi.QuoteAnswer{Bid: bid, OK: bids}
		}, got, want)
	case abi.Select:
		bids := r.Bids()
		return same(k, bids, func(p Policies) any { return p.Select(bids) }, got, want)
	case abi.Outlier:
		l := r.Loads()
		return same(k, l, func(p Policies) any { return p.Excess(l.Own, l.Mean) }, got, want)
	case abi.Place:
		a := r.Arrival()
		return same(k, a, func(p Policies) any { return p.Place(a) }, got, want)
	}
	ch := r.Change()
	return same(k, ch, func(p Policies) any {
		d, denied := p.Guard.Guard(ch)
		return abi.GuardAnswer{Denial: d, Denied: denied}
	}, got, want)
}

// same compares answers as text, in which an empty slice and nil are equal.
func same(k abi.Kind, arguments any, ask func(Policies) any, got, want Policies) error {
	if is, should := fmt.Sprintf("%+v", ask(got)), fmt.Sprintf("%+v", ask(want)); is != should {
		return fmt.Errorf("%s of %+v: %s, want %s", k, arguments, is, should)
	}
	return nil
}
