package fleet

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/xds/store"
)

// What a decision about a plan was; Change.Decision.
const (
	Adopted    = "adopted"     // a plan for its gain, or the first one
	RolledBack = "rolled back" // to an earlier plan
	Repaired   = "repaired"    // who serves has changed; boundaries stay where they can
	Refined    = "refined"     // boundaries alone, as the replicas propose
	Restated   = "restated"    // what somebody put into the store, under an epoch of its own
	Pinned     = "pinned"
	Unpinned   = "unpinned"
	Kept       = "kept"     // the plan in force stays
	HeldOff    = "held off" // so it does, since another one was taken back
	Denied     = "denied"   // so it does, since Rules.Check has something against another one
)

// Changes says that a decision replaced a plan.
func (c Change) Changes() bool {
	switch c.Decision {
	case Kept, HeldOff, Denied, Pinned, Unpinned:
		return false
	}
	return true
}

// refinedReason is why a plan differs from the one before by its boundaries
// alone.
const refinedReason = "boundaries refined"

// decisionOf names what a machine decided.
func decisionOf(d adoption.Decision) string {
	switch {
	case d.Reason == adoption.RolledBack:
		return RolledBack
	case d.Adopt && d.Reason == adoption.ReplicasChanged:
		return Repaired
	case d.Adopt:
		return Adopted
	case d.Reason == adoption.HeldOff:
		return HeldOff
	}
	return Kept
}

// appendHistory returns the history with changes behind it, bounded. Of
// refinements between two plans only the last is kept, and of decisions to keep
// a plan all are one: they come every second, or every period, and would push
// out all that explains the plan.
func appendHistory(history, changes []Change) []Change {
	all := slices.Clone(history)
	for _, c := range changes {
		i := sameOf(all, c)
		switch {
		case i < 0:
			all = append(all, c)
		case c.Decision == Refined:
			all = append(slices.Delete(all, i, i+1), c)
		default:
			c.Until, c.Times = c.Time, max(all[i].Times, 1)+1
			c.Time = all[i].Time
			all[i] = c
		}
	}
	return all[max(len(all)-historyLength, 0):]
}

// routine says that a decision comes again and again.
func routine(decision string) bool {
	return decision == Kept || decision == HeldOff || decision == Denied || decision == Refined
}

// sameOf is the index of a model's decision that was the same as a routine one,
// with nothing but routine after it; or -1.
func sameOf(history []Change, c Change) int {
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

// remember rebuilds the history from the reasons of a stored object, which
// other servers may have written, and keeps what this one knows beyond them:
// the stages.
func (s *State) remember(o store.Object) {
	known := s.history
	if s.pending != nil {
		known = slices.Concat(known, s.pending.Changes)
	}
	history := make([]Change, 0, len(o.Reasons))
	for _, r := range o.Reasons {
		c := Change{
			Time: r.At, Model: r.Model, Epoch: r.Epoch, Reason: r.Text, Decision: r.Decision,
			Gain: r.Gain, Predicted: r.Predicted, Observed: r.Observed, By: r.By, Times: r.Times, Until: r.Until,
		}
		for _, k := range known {
			if k.Model == c.Model && k.Epoch == c.Epoch && k.Reason == c.Reason && k.Time.Equal(c.Time) {
				c.Stages = k.Stages
			}
		}
		if c.Stages == nil && c.Changes() {
			for _, p := range o.Plans {
				if p.Model == c.Model && p.Epoch == c.Epoch {
					c.Stages = p.Stages
				}
			}
		}
		history = append(history, c)
	}
	s.history = appendHistory(history, nil)
	for _, m := range s.models {
		m.reason = ""
		for _, c := range s.history {
			if c.Model == m.Name && c.Epoch == m.plan.Epoch && c.Changes() {
				m.reason = c.Reason
			}
		}
	}
}

// reasons is the history as it is stored.
func reasons(history []Change) []store.Reason {
	out := make([]store.Reason, len(history))
	for i, c := range history {
		out[i] = store.Reason{
			Model: c.Model, Epoch: c.Epoch, At: c.Time, Text: cut(c.Reason, store.MaxText), Decision: c.Decision,
			Gain: c.Gain, Predicted: c.Predicted, Observed: c.Observed, By: cut(c.By, store.MaxText), Times: c.Times, Until: c.Until,
		}
	}
	return out
}
