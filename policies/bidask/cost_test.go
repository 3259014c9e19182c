package bidask_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// TestNearBidsWin runs single sales with random costs and bids. The confirmed buyer is
// the selector's choice among the bids that no cheaper bid beats; the test finds it by
// comparing all pairs. With equal costs it is the same as without costs.
func TestNearBidsWin(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	for range 3000 {
		length := policies.Tokens(rng.IntN(4))
		n := 1 + rng.IntN(8)
		in := bids(rng, n)
		for i := range in {
			in[i].From += "x" // not the seller
		}
		costs := make([]policies.Micros, n)
		for i := range costs {
			costs[i] = policies.Micros(rng.IntN(3) * 100)
		}
		ids := make([]policies.ReplicaID, n)
		for i, b := range in {
			ids[i] = b.From
		}
		var left []policies.Bid
		for i, b := range in {
			beaten := false
			for k, o := range in {
				beaten = beaten || costs[k] < costs[i] && o.Load <= b.Load+length
			}
			if !beaten {
				left = append(left, b)
			}
		}
		if got, want := sell(t, length, ids, costs, in), left[(bidask.LeastLoad{}).Select(left)].From; got != want {
			t.Fatalf("%d tokens, bids %v, costs %v: %s won, not %s", length, in, costs, got, want)
		}
		for i := range costs {
			costs[i] = 7
		}
		if got, want := sell(t, length, ids, costs, in), sell(t, length, ids, nil, in); got != want {
			t.Fatalf("with equal costs %s wins, without %s", got, want)
		}
	}
}

// sell offers a request to these replicas, which send the bids in, and returns the
// winner.
func sell(t *testing.T, length policies.Tokens, ids []policies.ReplicaID, costs []policies.Micros, in []policies.Bid) policies.ReplicaID {
	m, err := bidask.NewMachine(bidask.Rules{Self: "a", Sample: 16})
	testkit.NoError(t, err)
	out := m.Step(bidask.Event{Kind: bidask.Offered, Migration: policies.Migration{Request: "q", Length: length}, Candidates: ids, Costs: costs}, nil)
	if len(out) != len(ids) {
		t.Fatalf("%d of %d are asked", len(out), len(ids))
	}
	for _, b := range in {
		out = m.Step(bidask.Event{Kind: bidask.MessageReceived, Message: bidask.Message{Kind: bidask.Bid, From: b.From, To: "a", Deal: bidask.Deal{Seller: "a"}, Load: b.Load, Start: b.Start}}, nil)
	}
	if len(out) != 1 || out[0].Message.Kind != bidask.Confirm {
		t.Fatalf("no candidate won: %v", out)
	}
	return out[0].Message.To
}

// TestNearOnesAreAsked draws samples in fleets of several nodes: half of the sampled
// replicas are near, or all near ones if there are fewer. No replica is sampled twice,
// and the sample has the expected size.
func TestNearOnesAreAsked(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 3))
		ev := bidask.Event{Kind: bidask.Offered, Migration: policies.Migration{Request: "q", Length: 1}, Seed: rng.Uint64()}
		near, d := 0, 1+rng.IntN(10)
		for i := range 1 + rng.IntN(40) {
			id, cost := policies.ReplicaID(fmt.Sprint("r", i)), policies.Micros(1000)
			if rng.IntN(4) == 0 {
				cost = 10
				near++
			}
			ev.Candidates, ev.Costs = append(ev.Candidates, id), append(ev.Costs, cost)
		}
		if near == 0 {
			near = len(ev.Candidates) // then all are alike
		}
		self := policies.ReplicaID("s")
		m, err := bidask.NewMachine(bidask.Rules{Self: self, Sample: d})
		testkit.NoError(t, err)
		asked, count := map[policies.ReplicaID]bool{}, 0
		for _, a := range m.Step(ev, nil) {
			id := a.Message.To
			if asked[id] || !slices.Contains(ev.Candidates, id) {
				t.Fatalf("seed %d: %s is asked", seed, id)
			}
			asked[id] = true
			if ev.Costs[slices.Index(ev.Candidates, id)] == slices.Min(ev.Costs) {
				count++
			}
		}
		if want := min(d, len(ev.Candidates)); len(asked) != want {
			t.Errorf("seed %d: %d are asked, not %d", seed, len(asked), want)
		}
		if count < min(near, (d+1)/2) {
			t.Errorf("seed %d: %d of %d near ones are among %d", seed, count, near, d)
		}
	}
}
