package adoption_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/policytest"
)

// TestKeepStageReplicas checks random workloads: no stage has fewer replicas than the least, all are used, the division is
// within the limits and cheaper than one stage, and it is the free one where that has enough.
func TestKeepStageReplicas(t *testing.T) {
	policytest.TestPartitioner(t, adoption.KeepStageReplicas(partition.Exact{}, 2))
	rng := rand.New(rand.NewPCG(7, 3))
	raised, fewer := 0, 0
	for range 300 {
		w := policytest.ChatWorkload(policies.BucketEdges(32768, 2), 2+rng.IntN(14), 0.1+0.7*rng.Float64(), rng.Uint64())
		free, err := partition.Exact{}.Partition(w)
		if err != nil {
			continue
		}
		least := 2 + rng.IntN(2)
		got, err := adoption.KeepStageReplicas(partition.Exact{}, least).Partition(w)
		if err != nil {
			t.Fatalf("%d replicas, at least %d each: %v", w.Replicas, least, err)
		}
		sum := 0
		for _, n := range got.Counts {
			sum += n
		}
		if len(got.Counts) > 1 && slices.Min(got.Counts) < least || sum != w.Replicas {
			t.Errorf("%d replicas, at least %d each: %v", w.Replicas, least, got.Counts)
		}
		if slices.Min(free.Counts) >= least && !slices.Equal(got.Counts, free.Counts) {
			t.Errorf("at least %d each: %v is changed to %v", least, free.Counts, got.Counts)
		}
		if got.Cost > got.OneStage*(1+1e-9) {
			t.Errorf("%v costs %v, one stage %v", got.Counts, got.Cost, got.OneStage)
		}
		testkit.Must(partition.Flow.Price(w, got.Cuts, got.Counts))
		switch {
		case len(got.Counts) < len(free.Counts):
			fewer++
		case !slices.Equal(got.Counts, free.Counts):
			raised++
		}
	}
	if raised < 10 || fewer < 10 {
		t.Errorf("%d divisions kept their stages and %d did not: the workloads show little", raised, fewer)
	}
}
