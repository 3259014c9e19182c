package adoption_test

import (
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/policytest"
)

// TestSlackSettles checks that a planner that gives up a little cost for fewer stages does not make
// the machine switch between the plans within its slack: under a flow that stays the same but for a
// per cent of noise, one plan is adopted after the first, and stays.
func TestSlackSettles(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 21))
	simplified := 0
	for i := range 40 {
		base := policytest.ChatWorkload(policies.BucketEdges(131072, 2), 8, 0.3+0.4*rng.Float64(), rng.Uint64())
		base.Cost.Kappa = 4
		m := testkit.Must(adoption.New(adoption.Config{Planner: partition.Exact{Slack: partition.DefaultSlack}}))
		in := adoption.Input{Model: "m", Replicas: namedReplicas(8)}
		adopted, differs := 0, false
		for period := range 40 {
			in.Now = 10 * float64(period)
			in.Workload = noisy(rng, base, 0.01)
			d := m.Step(in)
			if d.Adopt {
				adopted++
			}
			in.Plan = d.Plan
			w := in.Workload
			w.Replicas = 8
			if best, err := (partition.Exact{}).Partition(w); err == nil && len(best.Counts) > len(d.Proposal.Counts) && len(d.Plan.Stages) > 1 {
				differs = true
			}
		}
		if differs {
			simplified++
		}
		if adopted > 2 {
			t.Errorf("fleet %d: %d plans adopted under a steady flow", i, adopted)
		}
	}
	if simplified < 10 {
		t.Errorf("only %d of 40 fleets have stages of which the best plan has more", simplified)
	}
}

// namedReplicas returns n replicas of the model m.
func namedReplicas(n int) (out []policies.Replica) {
	for i := range n {
		out = append(out, policies.Replica{ID: policies.ReplicaID(rune('a' + i)), Model: "m"})
	}
	return out
}

// noisy returns the workload with every bucket's flow changed by a random share of up to by.
func noisy(rng *rand.Rand, w policies.Workload, by float64) policies.Workload {
	flow := policies.NewFlow(w.Flow.Edges)
	flow.Seen = w.Flow.Seen
	from, to := w.Flow.Columns(), flow.Columns()
	for b := range w.Flow.Edges {
		factor := 1 + by*(2*rng.Float64()-1)
		for c := range to {
			to[c][b] = factor * from[c][b]
		}
	}
	w.Flow = flow
	return w
}
