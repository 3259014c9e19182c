package planner

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
)

// Boundaries describes the boundaries of the plan in force, in ascending order. It
// returns a new slice each time.
func (v *View) Boundaries(plan policies.Plan, edges []policies.Tokens) []partition.Boundary {
	stages := plan.Stages
	ready := make([]int, len(stages))
	for i := range v.Replicas {
		if r := &v.Replicas[i]; r.Stage >= 0 && r.Ready {
			ready[r.Stage]++
		}
	}
	batches := v.InFlightByStage(plan, edges)
	out := make([]partition.Boundary, len(stages)-1)
	for i := range out {
		out[i] = partition.Boundary{
			Epoch: plan.Epoch, At: stages[i].High, Low: stages[i].Low, High: stages[i+1].High,
			Peers: max(ready[i], 1), Successors: max(ready[i+1], 1), Next: batches[i+1],
		}
	}
	return out
}

// Proposals lists the valid proposals for the end of each stage but the last, or nil
// for a stage while no more than half of its serving replicas have made one: an epoch
// ends with the first new boundary, and the fastest replica must not decide for all.
func (v *View) Proposals(plan policies.Plan, context policies.Tokens) [][]policies.Tokens {
	stages := plan.Stages
	proposals := make([][]policies.Tokens, len(stages)-1)
	serving := make([]int, len(stages)-1)
	for n := range v.Replicas {
		r := &v.Replicas[n]
		i := r.Stage
		if i < 0 || i >= len(proposals) || !v.loadKnown(r) {
			continue
		}
		serving[i]++
		p := r.Proposal
		longest := max(context, stages[i].High) // no request is longer than the context
		if p.Epoch == plan.Epoch && p.Low == stages[i].Low && p.Boundary > p.Low && p.Boundary < stages[i+1].High && p.Boundary <= longest {
			proposals[i] = append(proposals[i], p.Boundary)
		}
	}
	for i := range proposals {
		if 2*len(proposals[i]) <= serving[i] {
			proposals[i] = nil
		}
	}
	return proposals
}
