package adoption_test

import (
	"math"
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

// TestSlackDoesNotCompound checks that the slack is measured from the best plan of the present flow
// and never from the plan in force: while a flow drifts, every plan that is adopted costs at most the
// slack more than the best one then.
func TestSlackDoesNotCompound(t *testing.T) {
	rng := rand.New(rand.NewPCG(22, 22))
	adopted := 0
	for range 20 {
		from := policytest.ChatWorkload(policies.BucketEdges(131072, 2), 8, 0.3, rng.Uint64())
		to := policytest.ChatWorkload(policies.BucketEdges(131072, 2), 8, 0.8, rng.Uint64())
		from.Cost.Kappa = 4
		m := testkit.Must(adoption.New(adoption.Config{Planner: partition.Exact{Slack: partition.DefaultSlack}}))
		in := adoption.Input{Model: "m", Replicas: namedReplicas(8)}
		for period := range 40 {
			in.Now = 10 * float64(period)
			in.Workload = between(from, to, math.Abs(math.Sin(float64(period)/6)))
			d := m.Step(in)
			in.Plan = d.Plan
			if !d.Adopt || len(d.Plan.Stages) == 1 {
				continue
			}
			adopted++
			w := in.Workload
			w.Replicas = 8
			best := testkit.Must(partition.Exact{}.Partition(w))
			counts := make([]int, len(d.Plan.Stages))
			for i, s := range d.Plan.Stages {
				counts[i] = len(s.Replicas)
			}
			got := testkit.Must(partition.Exact{}.Price(w, d.Plan.Cuts(), counts))
			if got.Cost > best.Cost*(1+partition.DefaultSlack)*(1+1e-9) {
				t.Fatalf("period %d: adopted (%s) a plan of cost %v, the best is %v", period, d.Reason, got.Cost, best.Cost)
			}
		}
	}
	if adopted < 20 {
		t.Errorf("only %d plans with stages were adopted", adopted)
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
	factors := make([]float64, len(w.Flow.Edges))
	for b := range factors {
		factors[b] = 1 + by*(2*rng.Float64()-1)
	}
	return between(w, w, 0, factors...)
}

// between returns the workload whose flow is so far between two flows, each bucket times its factor.
func between(from, to policies.Workload, share float64, factors ...float64) policies.Workload {
	out := from
	out.Flow = policies.NewFlow(from.Flow.Edges)
	out.Flow.Seen = from.Flow.Seen
	columns, a, z := out.Flow.Columns(), from.Flow.Columns(), to.Flow.Columns()
	for c := range columns {
		for b := range columns[c] {
			columns[c][b] = a[c][b] + share*(z[c][b]-a[c][b])
			if len(factors) > 0 {
				columns[c][b] *= factors[b]
			}
		}
	}
	return out
}
