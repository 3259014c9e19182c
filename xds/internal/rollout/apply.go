package rollout

import (
	"fmt"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// applyOrReset shows the group's phase, or its edition alone where that is not
// possible.
func (r *Rollout) applyOrReset(now time.Time, g *group) {
	if r.apply(now, g) != nil {
		g.machine = phaseMachine{live: []*Table{g.revision.table}}
		r.reapply(now, g)
	}
}

// startTransition begins to bring a group to its edition's table.
func (r *Rollout) startTransition(now time.Time, g *group) {
	g.machine.setTarget(g.revision.table)
	if err := r.apply(now, g); err != nil {
		r.abortPhase(now, g, err)
	}
}

// abortPhase ends a phase that could not be shown.
func (r *Rollout) abortPhase(now time.Time, g *group, err error) {
	if g.revision == r.rolling {
		r.failRollout(now, err.Error(), false)
		return
	}
	r.note(Note{Warn: true, Text: "phase not shown", Group: g.name, Why: err.Error()})
	g.machine.abort()
	r.enterPhase(now, g)
}

// reapply shows the present phase again, after something about it has changed. What
// cannot be shown leaves what is.
func (r *Rollout) reapply(now time.Time, g *group) {
	if err := r.apply(now, g); err != nil {
		r.note(Note{Warn: true, Text: "phase not shown", Group: g.name, Why: err.Error()})
		r.enterPhase(now, g)
	}
}

// apply shows what the group's machine says.
func (r *Rollout) apply(now time.Time, g *group) error {
	l := g.machine.layers()
	if !g.requestsUnknown {
		l.removed = g.removed
	}
	set, err := r.compose(l, g)
	if err != nil {
		return fmt.Errorf("%s: %w", g.machine.phase, err)
	}
	if !g.hasSet || !set.Equal(g.set) {
		g.set, g.hasSet, g.recorded = set, true, false
		g.serial++
		g.observed = false
		r.out.ObserveNow = true
		r.out.Applies = slices.DeleteFunc(r.out.Applies, func(s Apply) bool { return s.Group == g.name })
		r.out.Applies = append(r.out.Applies, Apply{Group: g.name, Set: set, Phase: g.machine.phase, Epoch: l.routes.Epoch()})
	}
	r.enterPhase(now, g)
	return nil
}

// enterPhase books that the group is in another phase.
func (r *Rollout) enterPhase(now time.Time, g *group) {
	if g.serialPhase == g.machine.phase {
		return
	}
	g.serialPhase, g.phaseStart = g.machine.phase, now
	clear(g.lateSince)
	g.serial++
	g.observed = false
	r.out.ObserveNow = true
}

// compose renders layers, without what was refused, and proves them. g is whom
// they are for, nil for nobody yet.
func (r *Rollout) compose(l layers, g *group) (resources.Set, error) {
	set, err := l.render(r.cfg.Build)
	if err != nil {
		return resources.Set{}, err
	}
	var h groupSets
	withheld := false // it was proven with what it lacks then
	if g != nil {
		h.applied, h.suspended = g.set, g.suspended
		if g.machine.phase != Idle {
			h.acked = resources.Set{}.With(g.ackedSet, awaitedTypes[Add]...)
		}
		if g.machine.phase != Idle && g.reverting {
			// Who took it has routes that lead there until it has gone back.
			h.passed = resources.Set{}.With(g.passedSet, awaitedTypes[Add]...)
		}
		// What all groups are to have cannot be exchanged for something else.
		set, withheld = r.omitRefused(set, g.set, g.revision == r.stable)
	}
	admitted, lost, err := r.replaceRefused(set, h)
	if err != nil || withheld {
		return admitted, err
	}
	if err := r.cfg.Prove(admitted); err != nil {
		return resources.Set{}, err
	}
	if lost != "" {
		if err := r.cfg.CheckMembers(admitted, l.routes.View); err != nil {
			return resources.Set{}, fmt.Errorf("%s; no good version can stand in: %w", lost, err)
		}
	}
	return admitted, nil
}
