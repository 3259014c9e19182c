package adoption

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// KeepStageReplicas returns a planner whose new divisions have at least the given number of replicas in each stage, so
// that a stage outlives one of them. If a stage of the best division has fewer, it gets some from the stages with the
// most, provided that the result is within the limits and still cheaper than one stage. Otherwise the division has
// fewer stages. A plan in force is priced as before: a replica that fails does not change it.
func KeepStageReplicas(p Planner, least int) Planner { return stageReplicas{p, least} }

type stageReplicas struct {
	Planner
	least int
}

// Partition proposes a division within the minimum; see KeepStageReplicas.
func (s stageReplicas) Partition(w policies.Workload) (policies.Partition, error) {
	for {
		p, err := s.Planner.Partition(w)
		if err != nil || len(p.Counts) == 1 || slices.Min(p.Counts) >= s.least {
			return p, err
		}
		if counts, ok := raise(p.Counts, s.least); ok {
			raised, err := s.Price(w, p.Cuts, counts)
			if err == nil && raised.Cost < p.OneStage {
				raised.OneStage = p.OneStage
				return raised, nil
			}
		}
		w.Limits.Stages = len(p.Counts) - 1
	}
}

// raise returns counts of at least the given number each, with the same sum, or false if the sum is too small.
func raise(counts []int, least int) ([]int, bool) {
	out := slices.Clone(counts)
	for {
		low, high := 0, 0
		for i, n := range out {
			if n < out[low] {
				low = i
			}
			if n > out[high] {
				high = i
			}
		}
		switch {
		case out[low] >= least:
			return out, true
		case out[high] <= least:
			return nil, false
		}
		out[low]++
		out[high]--
	}
}
