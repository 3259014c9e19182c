package measure

import (
	"fmt"
	"math"
)

// The goals, with the number of thread groups that transport cuda uses by default.
const (
	goalGroups = 16
	goalGather = 0.85  // of a contiguous copy's rate
	goalSubmit = 50e-6 // seconds
	goalSlower = 0.01  // of a decode step
)

// The verdicts on a goal.
const (
	Met         = "met"
	NotMet      = "not met"
	NotMeasured = "not measured"
)

// Goal is a goal, and whether the host meets it.
type Goal struct {
	Goal  string  `json:"goal"`  // for people, with its limit
	Limit float64 `json:"limit"` // a ratio, or seconds
	// Measured is the measured value in Limit's unit; nil if nothing was measured. By
	// says how.
	Measured *float64 `json:"measured,omitempty"`
	By       string   `json:"by,omitempty"`
	Verdict  string   `json:"verdict"`
	Reason   string   `json:"reason,omitempty"` // why nothing was measured
	// Text is the goal in one line.
	Text string `json:"text"`
}

// newGoal returns a goal with its verdict; text is the measured value.
func newGoal(goal string, limit, measured float64, text, by string, met bool) Goal {
	g := Goal{Goal: goal, Limit: limit, Measured: &measured, By: by, Verdict: NotMet}
	if met {
		g.Verdict = Met
	}
	g.Text = fmt.Sprintf("goal: %s: %s %s, %s", goal, text, by, g.Verdict)
	return g
}

func newUnmeasuredGoal(goal string, limit float64, by, reason string) Goal {
	g := Goal{Goal: goal, Limit: limit, By: by, Verdict: NotMeasured, Reason: reason}
	if by != "" {
		reason = by + ": " + reason
	}
	g.Text = fmt.Sprintf("goal: %s: %s: %s", goal, NotMeasured, reason)
	return g
}

// EvaluateGoals returns the verdicts on what was measured. They hold for this moment: a
// GPU that others use achieves less.
func EvaluateGoals(rows []Row) []Goal {
	return append([]Goal{gatherGoal(rows), submitGoal(rows)}, slowdownGoals(rows)...)
}

// findRow returns the row of a path of a part, nil if there is none; groups is 0 for a path
// without groups.
func findRow(rows []Row, part, name string, groups int) *Row {
	for i, r := range rows {
		if r.Part == part && r.Path == name && r.Groups == groups {
			return &rows[i]
		}
	}
	return nil
}

// The paths of Within that goals are about.
const (
	contiguous = "contiguous"
	byKernel   = "kernel"
)

var withGroups = fmt.Sprintf("with %d CTAs", goalGroups)

// missingKernelReason returns why there is no row of the kernel.
func missingKernelReason(rows []Row) string {
	for _, r := range rows {
		if r.Part == Within && r.Path == byKernel {
			return fmt.Sprintf("the kernel was not run with the %d CTAs that transport cuda uses", goalGroups)
		}
	}
	return "the kernel was not timed, or copied wrong bytes"
}

func gatherGoal(rows []Row) Goal {
	goal := fmt.Sprintf("gather ≥ %.2f× contiguous", goalGather)
	whole, k := findRow(rows, Within, contiguous, 0), findRow(rows, Within, byKernel, goalGroups)
	switch {
	case k == nil:
		return newUnmeasuredGoal(goal, goalGather, "", missingKernelReason(rows))
	case whole == nil || whole.Rate <= 0 || k.Rate <= 0:
		return newUnmeasuredGoal(goal, goalGather, "", "no rate of a contiguous copy was measured")
	}
	ratio := k.Rate / whole.Rate
	g := newGoal(goal, goalGather, ratio, fmt.Sprintf("%.2f×", ratio), withGroups, ratio >= goalGather)
	if g.Verdict == NotMet {
		best := *k
		for _, r := range rows {
			if r.Part == Within && r.Path == byKernel && r.Rate > best.Rate {
				best = r
			}
		}
		if best.Rate > 1.05*k.Rate { // more groups help, and cost the engine more
			g.Text += fmt.Sprintf(" (%.2f× with %d)", best.Rate/whole.Rate, best.Groups)
		}
	}
	return g
}

func submitGoal(rows []Row) Goal {
	goal := fmt.Sprintf("submit ≤ %.0f µs", goalSubmit*1e6)
	k := findRow(rows, Within, byKernel, goalGroups)
	if k == nil {
		return newUnmeasuredGoal(goal, goalSubmit, "", missingKernelReason(rows))
	}
	return newGoal(goal, goalSubmit, k.Submit, fmt.Sprintf("%.1f µs", k.Submit*1e6), withGroups, k.Submit <= goalSubmit)
}

// slowdownGoals returns a goal for each process that decoded, and each path of copying
// beside it.
func slowdownGoals(rows []Row) (out []Goal) {
	goal := fmt.Sprintf("decode slow-down ≤ %.0f %%", goalSlower*100)
	for _, alone := range rows {
		if alone.Part != Decode || alone.Path != Alone {
			continue
		}
		var of []Row
		for _, r := range rows {
			if r.Part == Decode && r.Of == alone.Of {
				of = append(of, r)
			}
		}
		again := findRow(of, Decode, AloneAgain, 0)
		for _, w := range []struct {
			path, by string
			groups   int
		}{{ByKernel, "by the kernel " + withGroups, goalGroups}, {ByCopies, "by the copy engines", 0}} {
			by := w.by + ", of " + alone.Of
			r := findRow(of, Decode, w.path, w.groups)
			switch {
			case r == nil:
				out = append(out, newUnmeasuredGoal(goal, goalSlower, by, "no step was timed beside such a transfer"))
			case r.Slower == nil || again == nil || again.Slower == nil:
				out = append(out, newUnmeasuredGoal(goal, goalSlower, by, "no step was timed alone, before and after"))
			case math.Abs(*again.Slower) > goalSlower:
				out = append(out, newUnmeasuredGoal(goal, goalSlower, by, fmt.Sprintf("it would be %+.1f %%, but a step alone differed from itself by %+.1f %%: others use the GPU, or its clocks change",
					*r.Slower*100, *again.Slower*100)))
			default:
				out = append(out, newGoal(goal, goalSlower, *r.Slower, fmt.Sprintf("%+.1f %%", *r.Slower*100), by, *r.Slower <= goalSlower))
			}
		}
	}
	if out == nil {
		out = append(out, newUnmeasuredGoal(goal, goalSlower, "", "no steps of another process were timed"))
	}
	return out
}
