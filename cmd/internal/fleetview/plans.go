package fleetview

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

// WriteChangedPlan prints the plan of a model in force after a change.
func WriteChangedPlan(w io.Writer, model string, plans control.PlanHistory) error {
	for _, d := range slices.Backward(plans.Decisions) {
		if len(d.Stages) > 0 {
			fmt.Fprintf(w, "%s: epoch %d, %s%s\n", model, d.Epoch, d.Reason, formatStages(d.Stages))
			break
		}
	}
	for _, pin := range plans.Pins {
		fmt.Fprintf(w, "%s: pinned to the plan of epoch %d by %s; \"cascade plan pin --undo %s\" ends that\n",
			pin.Model, pin.Epoch, actorName(pin.By), pin.Model)
	}
	return nil
}

// WriteHistory prints the history of plans as text.
func WriteHistory(w io.Writer, p control.PlanHistory) error {
	t := report.Table{
		Title: "decisions", Left: 8,
		Header: []string{"time", "model", "epoch", "decision", "gain", "iteration", "by", "why and what"},
	}
	for _, d := range p.Decisions {
		when := d.Time.Local().Format(time.DateTime)
		why := d.Reason + formatStages(d.Stages)
		if !d.Until.IsZero() && d.Times > 1 {
			why += fmt.Sprintf("; %d times until %s", d.Times, d.Until.Local().Format(time.TimeOnly))
		}
		t.Rows = append(t.Rows, []string{
			when, d.Model, fmt.Sprint(d.Epoch), cmp.Or(d.Decision, "changed"), percent(d.Gain), iterations(d), d.By, why,
		})
	}
	if len(p.Decisions) == 0 {
		t.Notes = []string{"No decision yet."}
	}
	for _, pin := range p.Pins {
		t.Notes = append(t.Notes, fmt.Sprintf("%s is pinned to the plan of epoch %d since %s by %s.",
			pin.Model, pin.Epoch, pin.At.Local().Format(time.DateTime), actorName(pin.By)))
	}
	if len(p.History) == 0 {
		return t.Text(w)
	}
	past := report.Table{Title: "earlier plans", Header: []string{"model", "epoch", "boundaries", "replicas"}, Left: 4}
	for _, old := range p.History {
		past.Rows = append(past.Rows, []string{old.Model, fmt.Sprint(old.Epoch), cutList(old.Cuts), join(old.Counts, "+")})
	}
	return report.WriteTables(w, t, past)
}

// actorName returns the name of the user or component that made a change.
func actorName(by string) string { return cmp.Or(by, "an operator") }

func percent(share float64) string {
	if share == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f %%", 100*share)
}

// iterations compares the measured iteration time with the predicted one.
func iterations(d control.Decision) string {
	if d.Observed == 0 || d.Predicted == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f ms for %.1f", d.Observed*1e3, d.Predicted*1e3)
}

// formatStages returns a plan in one line: its boundaries and the replicas
// between them.
func formatStages(stages []control.DecidedStage) string {
	if len(stages) == 0 {
		return ""
	}
	counts := make([]int, len(stages))
	var cuts []policies.Tokens
	for i, st := range stages {
		counts[i] = len(st.Replicas)
		if i > 0 {
			cuts = append(cuts, st.Low)
		}
	}
	if len(cuts) == 0 {
		return fmt.Sprintf(": one stage of %d", counts[0])
	}
	return fmt.Sprintf(": %s replicas, cut at %s", join(counts, "+"), cutList(cuts))
}

func cutList(cuts []policies.Tokens) string {
	if len(cuts) == 0 {
		return "none"
	}
	return join(cuts, ", ")
}

func join[T any](list []T, sep string) string {
	words := make([]string, len(list))
	for i, x := range list {
		words[i] = fmt.Sprint(x)
	}
	return strings.Join(words, sep)
}

// DescribeChange describes the effect of a plan change.
func DescribeChange(c control.Change) string {
	text := c.Reason
	if c.Gain > 0 && c.Gain < 1 { // 1: the previous plan could not carry the load at all
		text += fmt.Sprintf(", predicted gain %.0f %%", c.Gain*100)
	}
	if len(c.Stages) == 0 {
		return text // of an earlier process, whose stages are not stored
	}
	stages := make([]string, len(c.Stages))
	for i, st := range c.Stages {
		stages[i] = fmt.Sprintf("%s on %d", formatRange(st.Low, st.High), len(st.Replicas))
	}
	return text + ": " + strings.Join(stages, ", ")
}
