package adoption_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/policytest"
)

// TestLimitIterationRatio checks the contract of partitioners.
func TestLimitIterationRatio(t *testing.T) {
	policytest.TestPartitioner(t, adoption.LimitIterationRatio(partition.Exact{}, 1.2))
}

// TestIterationRatios checks every proposal of random workloads against the iteration time of one
// stage, and that a ratio that no stage reaches changes nothing.
func TestIterationRatios(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 1))
	bound, divided := 0, 0
	for range 300 {
		w := policytest.ChatWorkload(policies.BucketEdges(32768, 2), 2+rng.IntN(14), 0.1+0.8*rng.Float64(), rng.Uint64())
		free, err := partition.Exact{}.Partition(w)
		if err != nil {
			continue
		}
		one := testkit.Must(partition.Flow.Price(w, nil, []int{w.Replicas})).Iterations[0]
		for _, most := range []float64{1, 1.2, 1e9} {
			got, err := adoption.LimitIterationRatio(partition.Exact{}, most).Partition(w)
			if err != nil {
				t.Fatalf("ratio %v: %v", most, err)
			}
			if slowest := slices.Max(got.Iterations); slowest > most*one*(1+1e-9) {
				t.Errorf("ratio %v: the slowest stage takes %v, one stage %v", most, slowest, one)
			}
			if most == 1e9 && !slices.Equal(got.Cuts, free.Cuts) {
				t.Errorf("cuts %v, without a bound %v", got.Cuts, free.Cuts)
			}
			if most == 1.2 && !slices.Equal(got.Cuts, free.Cuts) {
				bound++
				if len(got.Cuts) > 0 {
					divided++
				}
			}
		}
	}
	if bound < 20 || divided < 5 {
		t.Errorf("the bound changed %d plans, and left stages in %d: too few to judge", bound, divided)
	}
}

// TestIterationRatioSlack checks that a plan in force is over its limits only a tenth beyond the ratio,
// and that a fleet that one stage overloads has no bound.
func TestIterationRatioSlack(t *testing.T) {
	w := policytest.ChatWorkload(policies.BucketEdges(32768, 2), 8, 0.6, 1)
	free := testkit.Must(partition.Exact{}.Partition(w))
	one := testkit.Must(partition.Flow.Price(w, nil, []int{8})).Iterations[0]
	ratio := slices.Max(free.Iterations) / one
	if ratio <= 1.1 {
		t.Fatalf("the slowest stage takes %v of one stage: too little to bound", ratio)
	}
	if _, err := adoption.LimitIterationRatio(partition.Exact{}, ratio/1.09).Price(w, free.Cuts, free.Counts); err != nil {
		t.Errorf("nine per cent beyond the ratio: %v", err)
	}
	if _, err := adoption.LimitIterationRatio(partition.Exact{}, ratio/1.11).Price(w, free.Cuts, free.Counts); !errors.Is(err, policies.ErrInfeasible) {
		t.Errorf("eleven per cent beyond the ratio: %v", err)
	}
	for b := range w.Flow.Tokens {
		w.Flow.Prefill[b] *= 100
	}
	p, err := adoption.LimitIterationRatio(partition.Exact{}, 1).Price(w, free.Cuts, free.Counts)
	if !math.IsInf(p.Cost, 1) || !errors.Is(err, policies.ErrInfeasible) {
		t.Errorf("overloaded: %v, %v", p.Cost, err)
	}
}
