package fleetstate

import (
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/policies/planner"
)

// View returns the replicas of a model as policies see them. It is valid until the next call
// of View.
func (g *Registry) View(now time.Time, model string) *planner.View {
	v := &g.view
	v.Reset()
	for _, r := range g.replicas {
		if r.Model != model {
			continue
		}
		v.Replicas = append(v.Replicas, planner.ReplicaView{
			Replica: r.Replica, Stage: r.Stage, Ready: r.Ready(), Leaving: r.DrainingNow(), DrainOrdered: r.DrainOrdered(), Removed: r.Removed,
			Topology: r.Topology(), Seen: r.Seen(), Refused: r.refused, Reported: !r.ReportedAt.IsZero(), Restored: !r.reported, Age: micros(now.Sub(r.ReportedAt)),
			Load: r.Report.Load, Flow: r.Report.Flow, Snapshot: r.Report.Snapshot, Proposal: r.Report.Proposal,
		})
	}
	return v
}

func micros(d time.Duration) policies.Micros { return policies.Micros(d.Microseconds()) }

// faded reports whether the replica's flow has faded, or there was none.
func (g *Registry) faded(now time.Time, r *Replica) bool {
	return r.ReportedAt.IsZero() || planner.Fade(micros(now.Sub(r.ReportedAt)), g.view.Grace, g.view.HalfLife) == 0
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
