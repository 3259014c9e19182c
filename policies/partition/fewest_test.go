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

// TestFewestEqualsOracle compares Exact with slack with the enumeration of all plans: no plan within
// the slack has fewer stages, and none with as many is cheaper.
func TestFewestEqualsOracle(t *testing.T) {
	rng := rand.New(rand.NewPCG(14, 14))
	fleets := testkit.Size(2000, 24000)
	fewer, still := 0, 0
	for i := range fleets {
		w, m := policytest.RandomWorkload(rng), models[i%len(models)]
		slack := []float64{0.001, partition.DefaultSlack, 0.05, 0.3}[rng.IntN(4)]
		costs := oracleByStages(m, w)
		least := slices.Min(costs)
		got, err := partition.Exact{Objective: m, Slack: slack}.Partition(w)
		if math.IsInf(least, 1) {
			if !errors.Is(err, policies.ErrInfeasible) {
				t.Fatalf("fleet %d: nothing is feasible, got %+v, %v", i, got, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("fleet %d (%v): %v", i, m, err)
		}
		stages := 1 + slices.IndexFunc(costs, func(c float64) bool { return c <= least*(1+slack)*(1+1e-9) })
		if len(got.Counts) != stages || !equal(got.Cost, costs[stages-1]) || !got.Exact {
			t.Fatalf("fleet %d (%v), slack %v: %+v, want %d stages at %v, the least being %v\n%+v", i, m, slack, got, stages, costs[stages-1], least, w)
		}
		if !equal(costs[stages-1], least) {
			fewer++
			if stages > 1 {
				still++
			}
		}
	}
	t.Logf("%d fleets: %d have fewer stages than the best, %d of them more than one", fleets, fewer, still)
	if fewer < fleets/20 || still < fleets/200 {
		t.Errorf("the fleets are too easy: %d have fewer stages than the best, %d of them more than one", fewer, still)
	}
}
