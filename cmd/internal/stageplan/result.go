package stageplan

import (
	"fmt"
	"math"
	"path/filepath"

	"github.com/cascadeinfer/cascade/cmd/internal/fleetview"
	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/planner"
	"github.com/cascadeinfer/cascade/xds/control"
)

// Result is a plan with what it was made for.
type Result struct {
	Source   string   `json:"source"`
	Policy   string   `json:"policy"`
	Profile  string   `json:"profile"`
	Replicas int      `json:"replicas"`
	Requests int      `json:"requests"`
	Rate     float64  `json:"requests_per_second"`
	Cost     float64  `json:"cost"`
	OneStage *float64 `json:"one_stage_cost"` // null: one stage cannot carry the load
	Exact    bool     `json:"exact"`
	Elapsed  float64  `json:"elapsed_seconds"`
	Stages   []Stage  `json:"stages"`
	// Prefill is what prefill replicas would cost and save; absent with policy paper, which prices no flows.
	Prefill *Prefill `json:"prefill,omitempty"`
	plan    policies.Plan
}

// Stage is a stage of the plan.
type Stage struct {
	Low       policies.Tokens  `json:"low"`
	High      *policies.Tokens `json:"high"` // null: the stage has no upper bound
	Replicas  int              `json:"replicas"`
	Arrivals  float64          `json:"arrivals_per_second"`
	Generated float64          `json:"tokens_per_second"`
	Work      float64          `json:"busy_replicas"` // in replicas, before the fixed cost of iterations
	Iteration float64          `json:"iteration_seconds,omitempty"`
	// Reason is why the stage exists, by the prices of the policy.
	Reason *control.StageReason `json:"reason,omitempty"`
}

// describePartition returns the stages of a partition with their share of the flow.
func describePartition(w policies.Workload, part policies.Partition, reasons []partition.StageReason) Result {
	out := Result{Cost: part.Cost, Exact: part.Exact}
	if !math.IsInf(part.OneStage, 1) {
		out.OneStage = &part.OneStage
	}
	out.plan = policies.Plan{Model: "plan"}
	id := 0
	for i, n := range part.Counts {
		st := policies.Stage{Low: 0, High: policies.Unbounded}
		if i > 0 {
			st.Low = part.Cuts[i-1]
		}
		if i < len(part.Cuts) {
			st.High = part.Cuts[i]
		}
		for range n {
			st.Replicas = append(st.Replicas, policies.ReplicaID(fmt.Sprintf("r%d", id)))
			id++
		}
		out.plan.Stages = append(out.plan.Stages, st)
		row := Stage{Low: st.Low, Replicas: n, Reason: control.ReasonOf(reasons[i])}
		if st.High != policies.Unbounded {
			row.High = &st.High
		}
		for b, e := range w.Flow.Edges {
			if e >= st.Low && e < st.High {
				row.Arrivals += w.Flow.Arrivals[b]
				row.Generated += w.Flow.Tokens[b]
				row.Work += w.Cost.D1*w.Flow.Tokens[b] + w.Cost.D4*w.Flow.Reads[b] +
					w.Cost.D2*w.Flow.Prefill[b] + w.Cost.D3*w.Flow.Prefill2[b]
			}
		}
		if part.Iterations != nil {
			row.Iteration = part.Iterations[i]
		}
		out.Stages = append(out.Stages, row)
	}
	return out
}

// title says what is planned.
func (r Result) title() string {
	return fmt.Sprintf("Stages for %s: %d requests, %.2f/s on %d replicas of %s",
		filepath.Base(r.Source), r.Requests, r.Rate, r.Replicas, r.Profile)
}

// Table returns the plan as a table, with its costs as notes.
func (r Result) Table() report.Table {
	t := report.Table{
		Title:  r.title(),
		Header: []string{"stage", "lengths", "why", "replicas", "arrivals/s", "tokens/s", "busy", "iteration"}, Left: 3,
	}
	for i, st := range r.Stages {
		high := policies.Unbounded
		if st.High != nil {
			high = *st.High
		}
		t.Rows = append(t.Rows, []string{
			fmt.Sprintf("s%d", i), policies.LengthRange(st.Low, high), fleetview.DescribeReason(st.Reason), fmt.Sprint(st.Replicas),
			fmt.Sprintf("%.2f (%s)", st.Arrivals, fleetview.FormatShare(st.Reason.Requests)),
			fmt.Sprintf("%.0f (%s)", st.Generated, fleetview.FormatShare(st.Reason.Tokens)),
			fmt.Sprintf("%.0f %%", 100*st.Work/float64(st.Replicas)), fmt.Sprintf("%.1f ms", st.Iteration*1e3),
		})
	}
	note := fmt.Sprintf("Cost %.4g", r.Cost)
	if r.OneStage != nil {
		note += fmt.Sprintf(", in one stage %.4g: a predicted gain of %.1f %%", *r.OneStage, 100*(1 - r.Cost / *r.OneStage))
	} else {
		note += "; one stage could not carry this load"
	}
	proof := "not proven optimal"
	switch {
	case r.Exact && r.Policy == planner.PolicyDefault:
		proof = fmt.Sprintf("proven optimal for its model but for up to %g %% that it gives up for fewer stages",
			100*partition.DefaultSlack)
	case r.Exact:
		proof = "proven optimal for its model"
	}
	planned := fmt.Sprintf("Policy %s, %s; planned in %.2f ms.", r.Policy, proof, r.Elapsed*1e3)
	t.Notes = []string{note + "." + r.adoptionNote(), planned}
	if r.Prefill != nil {
		t.Notes = append(t.Notes, r.Prefill.notes(r.Replicas)...)
	}
	return t
}

// adoptionNote says when a fleet in one stage would adopt the plan; "" for plans of one stage, and for policies whose
// plans are adopted by other rules.
func (r Result) adoptionNote() string {
	if len(r.Stages) < 2 || r.OneStage == nil || r.Policy != planner.PolicyDefault && r.Policy != "least-cost" {
		return ""
	}
	return fmt.Sprintf(" Placement by price saves most of that in one stage; with planner.adopt gain, a fleet is divided for %.0f %% or more.", 100*adoption.DefaultSplitGain)
}

// Picture draws the plan over the lengths of its requests.
func (r Result) Picture(requests []trace.Request) (report.Picture, error) {
	lengths := make([]policies.Tokens, len(requests))
	for i, q := range requests {
		lengths[i] = q.Input + q.Output
	}
	return report.Plan(r.title(), r.plan, lengths)
}
