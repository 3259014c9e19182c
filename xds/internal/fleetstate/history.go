package fleetstate

import (
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/internal/cleantext"
	"github.com/cascadeinfer/cascade/policies/planner"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Decisions beside those of package planner; see Change.Decision.
const (
	Restated = "restated" // the store was edited; its plan gets an epoch of its own
	Pinned   = "pinned"
	Unpinned = "unpinned"
)

// maxChanges bounds the history.
const maxChanges = 64

// Change is one entry of the history: a model's plan was replaced, or another one
// was considered and the plan is kept; see Replaces. Its Decision may be "", for a change of
// plan that an earlier version of the program stored, and its Stages nil, for one before the
// last restart.
type Change struct {
	planner.Change
	Time time.Time
	By   string // the operator, or the control plane; "" for one without a name
	// Times is how often in a row this was decided, the last time at Until; 0 means
	// once.
	Times int
	Until time.Time
}

// Replaces reports whether the decision replaced a plan.
func (c Change) Replaces() bool {
	switch c.Decision {
	case planner.Kept, planner.HeldOff, planner.Denied, Pinned, Unpinned:
		return false
	}
	return true
}

// Append returns the history with the changes appended, bounded. Only the last
// refinement between two plans is kept, and repeated decisions to keep a plan are
// merged into one: they come every second, or every period, and would push out the
// changes that explain the plan.
func Append(history []Change, changes ...Change) []Change {
	all := slices.Clone(history)
	for _, c := range changes {
		i := mergeable(all, c)
		switch {
		case i < 0:
			all = append(all, c)
		case c.Decision == planner.Refined:
			all = append(slices.Delete(all, i, i+1), c)
		default:
			c.Until, c.Times = c.Time, max(all[i].Times, 1)+1
			c.Time = all[i].Time
			all[i] = c
		}
	}
	return all[max(len(all)-maxChanges, 0):]
}

// routine reports whether a decision is repeated in every period or second.
func routine(decision string) bool {
	return decision == planner.Kept || decision == planner.HeldOff || decision == planner.Denied || decision == planner.Refined
}

// mergeable returns the index of the model's earlier change with the same routine
// decision that is followed only by routine decisions, or -1.
func mergeable(history []Change, c Change) int {
	for i := len(history) - 1; i >= 0 && routine(c.Decision); i-- {
		switch o := history[i]; {
		case o.Model != c.Model:
		case o.Decision == c.Decision:
			return i
		case !routine(o.Decision):
			return -1
		}
	}
	return -1
}

// FromStored rebuilds the history from the reasons of a stored object, which other
// control planes may have written. known are the changes whose stages this control
// plane knows.
func FromStored(o store.Object, known []Change) []Change {
	history := make([]Change, 0, len(o.Reasons))
	for _, r := range o.Reasons {
		c := Change{
			Change: planner.Change{Model: r.Model, Epoch: r.Epoch, Reason: r.Text, Decision: r.Decision, Gain: r.Gain, Predicted: r.Predicted, Observed: r.Observed},
			Time:   r.At, By: r.By, Times: r.Times, Until: r.Until,
		}
		for _, k := range known {
			if k.Model == c.Model && k.Epoch == c.Epoch && k.Reason == c.Reason && k.Time.Equal(c.Time) {
				c.Stages = k.Stages
			}
		}
		if c.Stages == nil && c.Replaces() {
			for _, p := range o.Plans {
				if p.Model == c.Model && p.Epoch == c.Epoch {
					c.Stages = p.Stages
				}
			}
		}
		history = append(history, c)
	}
	return Append(history)
}

// ToStored returns the history in its stored form.
func ToStored(history []Change) []store.Reason {
	out := make([]store.Reason, len(history))
	for i, c := range history {
		out[i] = store.Reason{
			Model: c.Model, Epoch: c.Epoch, At: c.Time, Text: Truncate(c.Reason), Decision: c.Decision,
			Gain: c.Gain, Predicted: c.Predicted, Observed: c.Observed, By: Truncate(c.By), Times: c.Times, Until: c.Until,
		}
	}
	return out
}

// Truncate shortens a text to what the store accepts, between two characters.
func Truncate(s string) string {
	return cleantext.Truncate(s, store.MaxText)
}
