package planrollout

import (
	"slices"
	"time"
)

// dropRemoved drops removed endpoints that have no requests, or whose requests
// are not counted.
func (r *Rollout) dropRemoved(now time.Time, g *group, f Observation) {
	g.requestsUnknown = false
	if !f.RequestsKnown || f.Requests == 0 || !now.Before(g.removeBy) {
		g.removed = nil
	}
	r.reapply(now, g)
}

// advanceGroup advances a group to its next phase unless it has to wait for nodes,
// and reports whether anything changed.
func (r *Rollout) advanceGroup(now time.Time, g *group) bool {
	settled := g.isSettled(now, r.cfg.AckTimeout)
	switch g.machine.phase {
	case Add, Flip:
		if !settled || r.isStopped(g) {
			return false
		}
		g.machine.advance()
		if g.machine.phase == Watch {
			if g.revision == r.rolling {
				r.lastSettled = now
			}
			if g.revision == r.rolling || g.reverting {
				r.note(Note{Text: "plan settled in group", Group: g.name, Epoch: g.machine.next.Epoch()})
			}
		}
		if err := r.apply(now, g); err != nil {
			r.abortPhase(now, g, err)
		}
		return true
	case Watch:
		if g.revision == r.rolling {
			return false
		}
		r.retire(now, g)
		return true
	}
	if !settled || g.machine.isEmpty() {
		return false
	}
	moved := g.reverting
	g.reverting = false
	return moved
}

// retire drops the members of the old snapshot. Removed endpoints stay until it is
// known whether they have requests.
func (r *Rollout) retire(now time.Time, g *group) {
	old := g.machine.finish()
	if r.cfg.DrainTimeout > 0 {
		view := g.revision.snapshot.View
		gone := removedFrom(view, old.View.Endpoints)
		if len(gone) > 0 {
			g.removeBy, g.requestsUnknown = now.Add(r.cfg.DrainTimeout), true
		}
		g.removed = removedFrom(view, append(gone, g.removed...))
	}
	if g.requestsUnknown {
		r.enterPhase(now, g)
		return
	}
	r.reapply(now, g)
}

// advanceRollout starts the plan in progress in the next group, and reports
// whether anything changed.
func (r *Rollout) advanceRollout(now time.Time) bool {
	if r.rolling == nil {
		return r.startRollout(now)
	}
	if why := r.whyStopped(); why != "" && !r.rolling.snapshot.sameExceptHealth(r.target) && r.whyBlocked(r.target) == "" {
		// A node that refuses one plan does not hold back the next.
		r.revertRollout(now, "plan withdrawn", why)
		return true
	}
	var populated, empty []*group
	for _, name := range r.cfg.Groups {
		g := r.groups[name]
		switch {
		case g.revision == r.rolling:
			if g.machine.phase != Watch || r.isStopped(g) {
				return false
			}
		case g.nodes > 0:
			populated = append(populated, g)
		default:
			empty = append(empty, g)
		}
	}
	switch {
	case len(populated) > 0:
		if !r.rolling.urgent && now.Before(r.lastSettled.Add(r.cfg.Watch)) {
			return false
		}
		r.startInGroup(now, populated[0])
	case len(empty) > 0:
		for _, g := range empty {
			if r.rolling != nil {
				r.startInGroup(now, g)
			}
		}
	default:
		r.note(Note{Text: "plan rolled out to all groups", Epoch: r.rolling.snapshot.Epoch()})
		r.stable, r.rolling, r.failed, r.blocked = r.rolling, nil, nil, ""
	}
	return true
}

// startInGroup starts the plan in progress in a group.
func (r *Rollout) startInGroup(now time.Time, g *group) {
	g.revision = r.rolling
	r.note(Note{Text: "plan rollout started in group", Group: g.name, Epoch: r.rolling.snapshot.Epoch()})
	r.startTransition(now, g)
}

// startRollout starts to roll out the target, unless it is blocked.
func (r *Rollout) startRollout(now time.Time) bool {
	if r.stable == nil || r.stable.snapshot == r.target || r.stable.snapshot.sameExceptHealth(r.target) {
		return false
	}
	for _, g := range r.groups {
		if g.reverting {
			return false // the group has not acknowledged the rollback yet
		}
	}
	if why := r.whyBlocked(r.target); why != "" {
		if why != r.blocked {
			r.blocked = why
			r.note(Note{Warn: true, Text: "plan blocked", Epoch: r.target.Epoch(), Why: why})
		}
		return false
	}
	r.blocked = ""
	r.rolling = &revision{snapshot: r.target, urgent: r.urgent}
	first := r.groups[r.cfg.Groups[0]]
	for _, name := range slices.Backward(r.cfg.Groups) {
		if g := r.groups[name]; g.nodes > 0 {
			first = g
		}
	}
	r.startInGroup(now, first)
	return true
}

// whyBlocked returns why a snapshot cannot be rolled out; "" if it can.
func (r *Rollout) whyBlocked(t *Snapshot) string {
	if r.failed != nil && r.failed.sameExceptHealth(t) {
		return r.failedWhy
	}
	return ""
}
