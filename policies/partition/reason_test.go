package partition_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/policytest"
)

// TestExplainEqualsOracle compares the reasons of the best plans of random workloads with the prices of
// the plans in which each pair of neighbours is one stage. No stage of a best plan costs more than it
// saves.
func TestExplainEqualsOracle(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	split := 0
	for i := range testkit.Size(1000, 10000) {
		w := policytest.RandomWorkload(rng)
		w.Limits.Pooling, w.Limits.Utilisation = 0, 0
		m := models[i%len(models)]
		plan, err := partition.Exact{Objective: m}.Partition(w)
		if err != nil {
			continue
		}
		w.Limits.Utilisation = 1e-9 // headroom counts for nothing
		reasons, err := partition.Explain(m, w, plan.Cuts, plan.Counts)
		testkit.NoError(t, err)
		w.Limits.Utilisation = 0
		merged := func(cut int) float64 {
			counts := slices.Clone(plan.Counts)
			counts[cut+1] += counts[cut]
			cost := price(m, w, slices.Concat(plan.Cuts[:cut], plan.Cuts[cut+1:]), slices.Concat(counts[:cut], counts[cut+1:]))
			if plan.Cost == 0 {
				return 0
			}
			return cost/plan.Cost - 1
		}
		var requests, tokens float64
		for s, r := range reasons {
			requests, tokens = requests+r.Requests, tokens+r.Tokens
			below, above := math.Inf(1), math.Inf(1)
			if s > 0 {
				below = merged(s - 1)
			}
			if s < len(plan.Cuts) {
				above = merged(s)
			}
			if len(plan.Counts) == 1 {
				if r.Neighbour != -1 || r.Rise != 0 {
					t.Fatalf("workload %d: the only stage: %+v", i, r)
				}
				continue
			}
			if want := min(below, above); !equal(1+r.Rise, 1+want) || r.Rise < -1e-9 {
				t.Fatalf("workload %d (%v): stage %d: %+v, want %v\n%+v", i, m, s, r, want, plan)
			}
			// Of equal neighbours, either one.
			if got := map[int]float64{s - 1: below, s + 1: above}[r.Neighbour]; !equal(1+got, 1+r.Rise) {
				t.Fatalf("workload %d (%v): stage %d: %+v; merged with its neighbours: %v and %v", i, m, s, r, below, above)
			}
			split++
		}
		for _, sum := range []float64{requests, tokens} {
			if sum != 0 && math.Abs(sum-1) > 1e-9 {
				t.Fatalf("workload %d: the shares add up to %v", i, sum)
			}
		}
	}
	if split < 100 {
		t.Errorf("only %d stages beside others", split)
	}
}

// TestExplain checks shares at the edges at which cuts are priced, and a stage that costs more than it saves.
func TestExplain(t *testing.T) {
	w := policytest.ChatWorkload(policies.BucketEdges(8192, 1), 16, 0.3, 1)
	cuts := []policies.Tokens{w.Flow.Edges[2] + 1} // priced at that edge
	free, err := partition.Explain(partition.Flow, w, cuts, []int{4, 12})
	testkit.NoError(t, err)
	w.Transfer.Base = 10 // seconds per migration, for which no stage pays
	reasons, err := partition.Explain(partition.Flow, w, cuts, []int{4, 12})
	testkit.NoError(t, err)
	var arrivals, tokens float64
	for b := range w.Flow.Edges {
		arrivals += w.Flow.Arrivals[b]
		tokens += w.Flow.Tokens[b]
	}
	first := reasons[0]
	if want := (w.Flow.Arrivals[0] + w.Flow.Arrivals[1]) / arrivals; math.Abs(first.Requests-want) > 1e-12 {
		t.Errorf("share of the requests %v, want %v", first.Requests, want)
	}
	if want := (w.Flow.Tokens[0] + w.Flow.Tokens[1]) / tokens; math.Abs(first.Tokens-want) > 1e-12 {
		t.Errorf("share of the tokens %v, want %v", first.Tokens, want)
	}
	if first.Rise >= 0 || first.Neighbour != 1 || reasons[1].Rise != first.Rise || reasons[1].Neighbour != 0 {
		t.Errorf("%+v, want that one stage would be cheaper", reasons)
	}
	if first.Rise >= free[0].Rise {
		t.Errorf("the rise is %v, and %v without migrations", first.Rise, free[0].Rise)
	}
	if _, err := partition.Explain(partition.Flow, w, nil, []int{0}); !errors.As(err, new(*policies.Violation)) {
		t.Errorf("a stage without replicas: %v", err)
	}
	w.Flow = policies.NewFlow(w.Flow.Edges)
	idle, err := partition.Explain(partition.Flow, w, cuts, []int{4, 12})
	if want := (partition.StageReason{Neighbour: 1}); err != nil || idle[0] != want {
		t.Errorf("without traffic: %+v, %v", idle, err)
	}
}

// onlyDivided prices divisions into more than one stage, and finds one stage infeasible.
type onlyDivided struct{}

func (onlyDivided) Price(_ policies.Workload, cuts []policies.Tokens, _ []int) (policies.Partition, error) {
	if len(cuts) == 0 {
		return policies.Partition{Cost: math.Inf(1)}, policies.ErrInfeasible
	}
	return policies.Partition{Cost: float64(len(cuts))}, nil
}

// TestExplainNecessary checks stages that would break a limit if they were merged, and those of a plan
// that breaks one itself.
func TestExplainNecessary(t *testing.T) {
	w := policytest.ChatWorkload(policies.BucketEdges(8192, 1), 4, 0.3, 1)
	two, err := partition.Explain(onlyDivided{}, w, []policies.Tokens{100}, []int{1, 3})
	if err != nil || !math.IsInf(two[0].Rise, 1) || two[0].Neighbour != 1 || !math.IsInf(two[1].Rise, 1) || two[1].Neighbour != 0 {
		t.Errorf("two stages: %+v, %v", two, err)
	}
	three, err := partition.Explain(onlyDivided{}, w, []policies.Tokens{100, 1000}, []int{1, 1, 2})
	if err != nil || three[1].Rise != -0.5 {
		t.Errorf("three stages: %+v, %v", three, err)
	}
	if one, err := partition.Explain(onlyDivided{}, w, nil, []int{4}); !errors.Is(err, policies.ErrInfeasible) {
		t.Errorf("one stage: %+v, %v", one, err)
	}
}
