package planrollout

import (
	"time"
)

// Plan rollback because proxies refuse it; policies/adoption/rollback.go: because it is
// slower than predicted; xds/internal/fleetstate: by an operator.

// revertStable reverts from the plan that all groups have to the previous one.
// Either a node of another control plane refused it, or this control plane had no
// node to refuse it during the rollout.
func (r *Rollout) revertStable(now time.Time, why string) {
	if r.rolling != nil {
		r.revertRollout(now, "plan rolled back", why)
	}
	old := r.stable
	r.failed, r.blocked = &failure{snapshot: old.snapshot, why: why, retryWithReplacements: true}, why
	r.stable, r.previous = r.previous, nil
	r.note(Note{Warn: true, Text: "plan rolled back", Epoch: old.snapshot.Epoch(), Why: why})
	applied := r.routesAcked(old.snapshot.Set)
	for _, name := range r.cfg.Groups {
		if g := r.groups[name]; g.revision == old {
			g.revision = r.stable
			if applied {
				g.machine.setTarget(r.stable.snapshot)
			} else {
				g.machine = phaseMachine{live: []*Snapshot{r.stable.snapshot}}
			}
			r.applyOrReset(now, g)
		}
	}
}

// failRollout rolls the plan in progress back in all groups that have it.
func (r *Rollout) failRollout(now time.Time, why string, admissible bool) {
	r.failed, r.blocked = &failure{snapshot: r.rolling.snapshot, why: why, retryWithReplacements: admissible}, why
	r.revertRollout(now, "plan rolled back", why)
}

// revertRollout reverts the groups that have the plan in progress to the stable
// one.
func (r *Rollout) revertRollout(now time.Time, text, why string) {
	old := r.rolling
	r.rolling = nil
	r.note(Note{Warn: why != "", Text: text, Epoch: old.snapshot.Epoch(), Why: why})
	for _, name := range r.cfg.Groups {
		g := r.groups[name]
		if g.revision != old {
			continue
		}
		g.revision, g.reverting, g.phaseStart = r.stable, true, now
		clear(g.lateSince)
		g.machine.revertTo(r.stable.snapshot)
		r.applyOrReset(now, g)
	}
}
