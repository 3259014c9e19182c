package fleet

import (
	"slices"

	"github.com/cascadeinfer/cascade/xds/store"
)

// appendHistory returns the history with changes behind it, bounded. Of one
// refinement after the other only the last is kept: they come every second, and
// would push out all that explains the plan.
func appendHistory(history, changes []Change) []Change {
	all := slices.Clone(history)
	for _, c := range changes {
		if i := lastOf(all, c.Model); c.Reason == refinedReason && i >= 0 && all[i].Reason == refinedReason {
			all = slices.Delete(all, i, i+1)
		}
		all = append(all, c)
	}
	return all[max(len(all)-historyLength, 0):]
}

// lastOf is the index of a model's last change, or -1.
func lastOf(history []Change, model string) int {
	for i := len(history) - 1; i >= 0; i-- {
		if history[i].Model == model {
			return i
		}
	}
	return -1
}

// remember rebuilds the history from the reasons of a stored object, which
// other servers may have written, and keeps what this one knows beyond them.
func (s *State) remember(o store.Object) {
	known := s.history
	if s.pending != nil {
		known = slices.Concat(known, s.pending.Changes)
	}
	history := make([]Change, 0, len(o.Reasons))
	for _, r := range o.Reasons {
		c := Change{Time: r.At, Model: r.Model, Epoch: r.Epoch, Reason: r.Text}
		for _, k := range known {
			if k.Model == r.Model && k.Epoch == r.Epoch && k.Reason == r.Text {
				c = k
			}
		}
		history = append(history, c)
	}
	s.history = appendHistory(history, nil)
	for _, m := range s.models {
		m.reason = ""
		for _, c := range s.history {
			if c.Model == m.Name && c.Epoch == m.plan.Epoch {
				m.reason = c.Reason
			}
		}
	}
}
