package fleet

import (
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/policies/proximity"
)

// model is one model's part of a State.
type model struct {
	Model
	plan    policies.Plan // in force; no stages: none yet
	again   Change        // see State.restate; no stages: nothing is to be stated again
	reason  string        // why plan replaced the one before
	planner string        // what the last period decided
	next    time.Time     // of the next planning period
	lacks   time.Time     // since when a stage has no ready replica although others are; zero: none lacks
	ratio   length.Ratio  // bytes per token served
	wish    length.Ratio  // what shall be served; ratio follows when it is stored
	order   *order        // an operator's, until it is stored; nil: none
	held    []float64     // mean held tokens per stage, as of the last tick; -1: nobody knows
	borders []Refine      // between the stages, as of the last tick; none: not refined
	decider decider
	near    *proximity.Map // nil: to be made; see State.near
}

// serving is the replica of that id, or nil if there is none or it serves
// another model by now: a plan may still name it.
func (s *State) serving(m *model, id policies.ReplicaID) *replica {
	if r := s.byID[id]; r != nil && r.Model == m.Name {
		return r
	}
	return nil
}

// members lists the replicas that may be in a stage, in the order of the
// registry: those that serve, are in the plan, or were never in one and are
// ready. A new replica joins no stage before its engine answers.
func (s *State) members(m *model) []member {
	var list []member
	for _, r := range s.replicas {
		if r.Model != m.Name || r.draining() {
			continue
		}
		if r.ready() || r.stage >= 0 {
			list = append(list, member{id: r.ID, ready: r.ready(), work: r.work()})
		}
	}
	return list
}

// flow sums what the model's replicas count. Draining and silent replicas
// still stand for work that will come back elsewhere; late ones fade.
func (s *State) flow(now time.Time, m *model) policies.Flow {
	sum := policies.NewFlow(m.Edges)
	for _, r := range s.replicas {
		if r.Model != m.Name {
			continue
		}
		sum.Seen += r.seen()
		if r.at.IsZero() || !sameEdges(r.report.Flow.Edges, m.Edges) {
			continue
		}
		if w := fade(now.Sub(r.at), s.rules.Grace, s.rules.HalfLife); w > 0 {
			addFaded(sum, r.report.Flow, w)
		}
	}
	return sum
}

// inFlight sums the snapshots of fresh reports by bucket, for policies that
// plan on them.
func (s *State) inFlight(now time.Time, m *model) []policies.Batch {
	sum := make([]policies.Batch, len(m.Edges))
	for _, r := range s.replicas {
		if r.Model != m.Name || !r.fresh(now, s.rules.Grace) || len(r.report.Snapshot) != len(sum) || !sameEdges(r.report.Flow.Edges, m.Edges) {
			continue
		}
		for b := range sum {
			sum[b] = sum[b].Plus(r.report.Snapshot[b])
		}
	}
	return sum
}

// learnt is the model's bytes per token and relative estimate error, each the
// mean over fresh reports weighted by requests per second; 0 when nobody knows.
func (s *State) learnt(now time.Time, m *model) (ratio length.Ratio, estimateError float64) {
	var sum, weight float64
	for _, r := range s.replicas {
		if r.Model != m.Name || !r.fresh(now, s.rules.Grace) || r.report.BytesPerToken == 0 {
			continue
		}
		w := arrivals(r.report.Flow) + 1e-3 // a replica that idles still knows something
		sum += float64(w * r.report.BytesPerToken)
		estimateError += float64(w * r.report.EstimateError)
		weight += w
	}
	if weight == 0 {
		return 0, 0
	}
	return length.RatioOf(sum / weight), estimateError / weight
}

// pace is what a stage runs at one moment: how many requests, and how many
// tokens a second they get. Their quotient is the iteration time.
type pace struct{ running, tokens float64 }

// paces is the present pace of each stage of the plan, over its fresh replicas.
func (s *State) paces(now time.Time, m *model) []pace {
	out := make([]pace, len(m.plan.Stages))
	for _, r := range s.replicas {
		if i := r.stage; r.Model == m.Name && i >= 0 && r.fresh(now, s.rules.Grace) && r.report.Load.Iteration > 0 {
			n := float64(r.report.Load.Running)
			out[i].running += n
			out[i].tokens += n / r.report.Load.Iteration
		}
	}
	return out
}

// workload is what a planner may know of the model, for the given replicas.
func (s *State) workload(now time.Time, m *model, flow policies.Flow, eligible []policies.Replica) policies.Workload {
	w := policies.Workload{
		Flow: flow, Cost: m.Cost, Transfer: s.transfer(m, eligible), Limits: m.Limits,
		Replicas: len(eligible), Capacity: eligible[0].Capacity,
	}
	for _, r := range eligible[1:] {
		// Replicas of one model are alike; where they are not, the smallest counts.
		w.Capacity.KV = min(w.Capacity.KV, r.Capacity.KV)
		w.Capacity.Batch = min(w.Capacity.Batch, r.Capacity.Batch)
		w.Capacity.TransferRate = min(w.Capacity.TransferRate, r.Capacity.TransferRate)
	}
	if s.policy.snapshot {
		w.Snapshot = s.inFlight(now, m)
	}
	return w
}

// meanHeld is the mean, for each stage, of the tokens that its replicas hold, of
// those that take requests and whose report is not late. An engine that is gone
// holds nothing and would make outliers of all others. What is promised is not
// part of it: a replica sells what runs. -1 where nobody counts.
func (s *State) meanHeld(now time.Time, m *model) []float64 {
	mean := make([]float64, len(m.plan.Stages))
	n := make([]float64, len(mean))
	for _, r := range s.replicas {
		if r.Model == m.Name && r.stage >= 0 && r.tells(now, s.rules.Grace) {
			mean[r.stage] += work(Loaded{Work: r.report.Load.Held, KV: r.Capacity.KV})
			n[r.stage]++
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
