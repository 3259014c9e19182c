package fleet

import (
	"slices"

	"github.com/cascadeinfer/cascade/xds/store"
)

// appendHistory returns the history with changes behind it, bounded.
func appendHistory(history, changes []Change) []Change {
	all := slices.Concat(history, changes)
	return all[max(len(all)-historyLength, 0):]
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
