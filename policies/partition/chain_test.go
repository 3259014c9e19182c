package partition_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/policytest"
)

// TestChain prices every division into stages of one replica each: the chain is the best of them. With
// more replicas than stages it uses all.
func TestChain(t *testing.T) {
	rng := rand.New(rand.NewPCG(12, 12))
	compared, surplus, beyond := 0, 0, 0
	for i := range 4000 {
		w := policytest.RandomWorkload(rng)
		model := models[i%len(models)]
		stages := min(w.Replicas, len(w.Flow.Edges), policies.MaxStages)
		if s := w.Limits.Stages; s > 0 {
			stages = min(stages, s)
		}
		got, err := partition.TwoPhase{Objective: model}.Chain(w)
		testkit.NoError(t, err)
		sum := 0
		for _, k := range got.Counts {
			sum += k
		}
		if len(got.Counts) != stages || sum != w.Replicas || len(got.Cuts) != stages-1 {
			t.Fatalf("workload %d: %+v, want %d stages of %d replicas", i, got, stages, w.Replicas)
		}
		if w.Replicas > stages {
			surplus++
			continue
		}
		best := math.Inf(1)
		counts := make([]int, stages)
		for s := range counts {
			counts[s] = 1
		}
		var cut func(from int, cuts []policies.Tokens)
		cut = func(from int, cuts []policies.Tokens) {
			if len(cuts) == stages-1 {
				best = min(best, price(model, w, cuts, counts))
				return
			}
			for b := from; b < len(w.Flow.Edges); b++ {
				cut(b+1, append(cuts, w.Flow.Edges[b]))
			}
		}
		cut(1, nil)
		if math.IsInf(best, 1) != math.IsInf(got.Cost, 1) || !math.IsInf(best, 1) && math.Abs(got.Cost-best) > 1e-9*best {
			t.Fatalf("workload %d, %v: the chain costs %v, the best one %v", i, model, got.Cost, best)
		}
		if compared++; math.IsInf(best, 1) {
			beyond++
		}
	}
	if compared-beyond < 300 || surplus < 300 || beyond < 100 {
		t.Errorf("%d chains compared, %d of them without enough replicas; %d with a surplus", compared, beyond, surplus)
	}
}
