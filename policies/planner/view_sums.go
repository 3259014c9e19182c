package planner

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/balance"
)

// InFlightByStage sums the snapshots of fresh reports by bucket, for each stage of a plan,
// over the replicas that serve.
func (v *View) InFlightByStage(plan policies.Plan, edges []policies.Tokens) [][]policies.Batch {
	sums := make([][]policies.Batch, len(plan.Stages))
	for i := range sums {
		sums[i] = make([]policies.Batch, len(edges))
	}
	for i := range v.Replicas {
		if r := &v.Replicas[i]; r.Stage >= 0 && v.loadKnown(r) {
			r.addSnapshot(sums[r.Stage], edges)
		}
	}
	return sums
}

// addSnapshot adds the replica's snapshot to a sum, if it has the same buckets.
func (r *ReplicaView) addSnapshot(sum []policies.Batch, edges []policies.Tokens) {
	if len(r.Snapshot) != len(edges) || !slices.Equal(r.Flow.Edges, edges) {
		return
	}
	for b, x := range r.Snapshot {
		sum[b] = sum[b].Plus(x)
	}
}

// Pace is the number of running requests of a stage at one moment and the tokens per
// second that they get. Their quotient is the iteration time.
type Pace struct{ Running, Tokens float64 }

// Paces returns the present pace of each stage of a plan, over its fresh replicas.
func (v *View) Paces(plan policies.Plan) []Pace {
	out := make([]Pace, len(plan.Stages))
	for i := range v.Replicas {
		if r := &v.Replicas[i]; r.Stage >= 0 && v.fresh(r) && r.Load.Iteration > 0 {
			n := float64(r.Load.Running)
			out[r.Stage].Running += n
			out[r.Stage].Tokens += n / r.Load.Iteration
		}
	}
	return out
}

// MeanHeld returns, for each stage of a plan, the mean of the tokens that its replicas
// hold, over those that serve and whose report is not late: an engine that is gone
// holds nothing and would make outliers of all others. Promised tokens are not
// included, because a replica offers only running requests. -1 where no replica counts.
func (v *View) MeanHeld(plan policies.Plan) []float64 {
	mean := make([]float64, len(plan.Stages))
	n := make([]float64, len(mean))
	for i := range v.Replicas {
		if r := &v.Replicas[i]; r.Stage >= 0 && v.loadKnown(r) {
			mean[r.Stage] += balance.BoundedWork(r.Load.Held, r.Capacity.KV)
			n[r.Stage]++
		}
	}
	for i := range mean {
		if n[i] == 0 {
			mean[i] = -1
			continue
		}
		mean[i] /= n[i]
	}
	return mean
}
