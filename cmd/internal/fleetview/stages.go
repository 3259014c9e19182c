package fleetview

import (
	"fmt"
	"math"

	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/xds/control"
)

// DescribeReason says why a stage exists: what the plan would cost without it.
func DescribeReason(r *control.StageReason) string {
	switch {
	case r == nil:
		return "not known yet"
	case r.MergedWith == "":
		return "the only stage"
	case r.CostRise == nil:
		return "over its limits if merged"
	case *r.CostRise < 0:
		return fmt.Sprintf("%s cheaper if merged with %s", FormatShare(-*r.CostRise), r.MergedWith)
	}
	return fmt.Sprintf("%s dearer if merged with %s", FormatShare(*r.CostRise), r.MergedWith)
}

// FormatShare formats a share with two digits, and more for those above 100 %.
func FormatShare(share float64) string {
	if digits := 100 * share; digits < 9.95 {
		return fmt.Sprintf("%.1f %%", digits)
	}
	return fmt.Sprintf("%.0f %%", math.Round(100*share))
}

// stageNotes says of each stage of a plan with several what it serves and why it exists.
func stageNotes(stages []control.Stage) (notes []string) {
	for _, st := range stages {
		if r := st.Reason; r != nil && len(stages) > 1 {
			notes = append(notes, fmt.Sprintf("%s: %s of the requests, %s of the tokens; %s.",
				st.Name, FormatShare(r.Requests), FormatShare(r.Tokens), DescribeReason(r)))
		}
	}
	return notes
}

// PlanTable shows the plan of a model, and why it has its stages.
func PlanTable(title string, m control.Model) report.Table {
	t := report.Table{
		Title: fmt.Sprintf("%s: epoch %d, %s", title, m.Epoch, m.Reason), Left: 3,
		Header: []string{"stage", "lengths", "why", "replicas", "requests", "tokens"},
	}
	for _, st := range m.Stages {
		requests, tokens := "–", "–"
		if st.Reason != nil {
			requests, tokens = FormatShare(st.Reason.Requests), FormatShare(st.Reason.Tokens)
		}
		t.Rows = append(t.Rows, []string{
			st.Name, FormatRange(st), DescribeReason(st.Reason), fmt.Sprint(len(st.Replicas)), requests, tokens,
		})
	}
	t.Notes = []string{"Costs are the planner's predictions for the traffic of its last period; " +
		"a merged stage would have the replicas of both."}
	return t
}
