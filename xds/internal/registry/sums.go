package registry

import (
	"math"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/internal/weights"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// Flow sums the flows of a model's replicas with these buckets. Draining and silent
// replicas still count, because their work will return on other replicas; late ones
// fade.
func (g *Registry) Flow(now time.Time, model string, edges []policies.Tokens) policies.Flow {
	sum := policies.NewFlow(edges)
	for _, r := range g.replicas {
		if r.Model != model {
			continue
		}
		sum.Seen += r.Seen()
		if r.ReportedAt.IsZero() || !slices.Equal(r.Report.Flow.Edges, edges) {
			continue
		}
		if w := fade(now.Sub(r.ReportedAt), g.cfg.Grace, g.cfg.HalfLife); w > 0 {
			addFaded(sum, r.Report.Flow, w)
		}
	}
	return sum
}

// fade returns the weight of a flow whose last report has this age: 1 within the grace,
// then halved per half life; 0 when too little is left to plan on.
func fade(age, grace, halfLife time.Duration) float64 {
	if age <= grace {
		return 1
	}
	w := math.Exp2(-float64(age-grace) / float64(halfLife))
	if w < 1.0/64 {
		return 0
	}
	return w
}

// addFaded adds w times flow o to sum, cell by cell; both have sum's edges.
func addFaded(sum, o policies.Flow, w float64) {
	from := loadreport.Columns(o)
	for i, c := range loadreport.Columns(sum) {
		for b := range c {
			c[b] += float64(w * from[i][b])
		}
	}
}

// Seen returns the number of requests of a model's replicas.
func (g *Registry) Seen(model string) (n uint64) {
	for _, r := range g.replicas {
		if r.Model == model {
			n += r.Seen()
		}
	}
	return n
}

// InFlightByStage sums the snapshots of fresh reports by bucket, for each stage of a plan,
// over the replicas that serve.
func (g *Registry) InFlightByStage(now time.Time, plan policies.Plan, edges []policies.Tokens) [][]policies.Batch {
	sums := make([][]policies.Batch, len(plan.Stages))
	for i := range sums {
		sums[i] = make([]policies.Batch, len(edges))
	}
	for _, r := range g.replicas {
		if r.Model == plan.Model && r.Stage >= 0 && r.loadKnown(now, g.cfg.Grace) {
			r.addSnapshot(sums[r.Stage], edges)
		}
	}
	return sums
}

// addSnapshot adds the replica's snapshot to a sum, if it has the same buckets.
func (r *Replica) addSnapshot(sum []policies.Batch, edges []policies.Tokens) {
	if len(r.Report.Snapshot) != len(edges) || !slices.Equal(r.Report.Flow.Edges, edges) {
		return
	}
	for b, x := range r.Report.Snapshot {
		sum[b] = sum[b].Plus(x)
	}
}

// LearntRatio returns a model's bytes per token and relative estimate error, each the
// mean over fresh reports weighted by requests per second; 0 when no report has one.
func (g *Registry) LearntRatio(now time.Time, model string) (ratio length.Ratio, estimateError float64) {
	var sum, weight float64
	for _, r := range g.replicas {
		if r.Model != model || !r.fresh(now, g.cfg.Grace) || r.Report.BytesPerToken == 0 {
			continue
		}
		w := 1e-3 // the ratio of an idle replica still counts a little
		for _, x := range r.Report.Flow.Arrivals {
			w += x
		}
		sum += float64(w * r.Report.BytesPerToken)
		estimateError += float64(w * r.Report.EstimateError)
		weight += w
	}
	if weight == 0 {
		return 0, 0
	}
	return length.RatioOf(sum / weight), estimateError / weight
}

// Pace is the number of running requests of a stage at one moment and the tokens per
// second that they get. Their quotient is the iteration time.
type Pace struct{ Running, Tokens float64 }

// Paces returns the present pace of each stage of a plan, over its fresh replicas.
func (g *Registry) Paces(now time.Time, plan policies.Plan) []Pace {
	out := make([]Pace, len(plan.Stages))
	for _, r := range g.replicas {
		if i := r.Stage; r.Model == plan.Model && i >= 0 && r.fresh(now, g.cfg.Grace) && r.Report.Load.Iteration > 0 {
			n := float64(r.Report.Load.Running)
			out[i].Running += n
			out[i].Tokens += n / r.Report.Load.Iteration
		}
	}
	return out
}

// MeanHeld returns, for each stage of a plan, the mean of the tokens that its replicas
// hold, over those that serve and whose report is not late: an engine that is gone
// holds nothing and would make outliers of all others. Promised tokens are not
// included, because a replica offers only running requests. -1 where no replica counts.
func (g *Registry) MeanHeld(now time.Time, plan policies.Plan) []float64 {
	mean := make([]float64, len(plan.Stages))
	n := make([]float64, len(mean))
	for _, r := range g.replicas {
		if r.Model == plan.Model && r.Stage >= 0 && r.loadKnown(now, g.cfg.Grace) {
			mean[r.Stage] += weights.BoundedWork(r.Report.Load.Held, r.Capacity.KV)
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

// Proposals lists the valid proposals for the end of each stage but the last, or nil
// for a stage while no more than half of its serving replicas have made one: an epoch
// ends with the first new boundary, and the fastest replica must not decide for all.
func (g *Registry) Proposals(now time.Time, plan policies.Plan, context policies.Tokens) [][]policies.Tokens {
	stages := plan.Stages
	proposals := make([][]policies.Tokens, len(stages)-1)
	serving := make([]int, len(stages)-1)
	for _, r := range g.replicas {
		i := r.Stage
		if r.Model != plan.Model || i < 0 || i >= len(proposals) || !r.loadKnown(now, g.cfg.Grace) {
			continue
		}
		serving[i]++
		p := r.Report.Proposal
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
