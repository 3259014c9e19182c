package main

import (
	"fmt"
	"math"

	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/xds/control"
)

// describeReason says why a stage exists: what the plan would cost without it.
func describeReason(r *control.StageReason) string {
	switch {
	case r == nil:
		return "not known yet"
	case r.MergedWith == "":
		return "the only stage"
	case r.CostRise == nil:
		return "merged with a neighbour, it would be over its limits"
	case *r.CostRise < 0:
		return fmt.Sprintf("merged with %s, the plan would cost %s less", r.MergedWith, percentage(-*r.CostRise))
	}
	return fmt.Sprintf("merged with %s, the plan would cost %s more", r.MergedWith, percentage(*r.CostRise))
}

// percentage formats a share with two digits, and more for those above 100 %.
func percentage(share float64) string {
	if digits := 100 * share; digits < 9.95 {
		return fmt.Sprintf("%.1f %%", digits)
	}
	return fmt.Sprintf("%.0f %%", math.Round(100*share))
}

// stageNotes says of each stage of a plan with several what it serves and why it exists.
func stageNotes(stages []control.Stage) (notes []string) {
	for _, st := range stages {
		if r := st.Reason; r != nil && len(stages) > 1 {
			notes = append(notes, fmt.Sprintf("%s: %s of the requests, %s of the tokens; %s.", st.Name, percentage(r.Requests), percentage(r.Tokens), describeReason(r)))
		}
	}
	return notes
}

// planTable shows the plan of a model, and why it has its stages.
func planTable(title string, m control.Model) report.Table {
	t := report.Table{Title: fmt.Sprintf("%s: epoch %d, %s", title, m.Epoch, m.Reason), Header: []string{"stage", "lengths", "why", "replicas", "requests", "tokens"}, Left: 3}
	for _, st := range m.Stages {
		requests, tokens := "–", "–"
		if st.Reason != nil {
			requests, tokens = percentage(st.Reason.Requests), percentage(st.Reason.Tokens)
		}
		t.Rows = append(t.Rows, []string{st.Name, formatRange(st), describeReason(st.Reason), fmt.Sprint(len(st.Replicas)), requests, tokens})
	}
	t.Notes = []string{"Costs are the planner's predictions for the traffic of its last period; a merged stage would have the replicas of both."}
	return t
}
