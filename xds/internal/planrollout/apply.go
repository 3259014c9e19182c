package planrollout

import (
	"fmt"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// applyOrReset applies the group's phase or, if that fails, its revision alone.
func (r *Rollout) applyOrReset(now time.Time, g *group) {
	if r.apply(now, g) != nil {
		g.machine = phaseMachine{live: []*Snapshot{g.revision.snapshot}}
		r.reapply(now, g)
	}
}

// startTransition begins the transition of a group to its revision's snapshot.
func (r *Rollout) startTransition(now time.Time, g *group) {
	g.machine.setTarget(g.revision.snapshot)
	if err := r.apply(now, g); err != nil {
		r.abortPhase(now, g, err)
	}
}

// abortPhase ends a phase that could not be applied.
func (r *Rollout) abortPhase(now time.Time, g *group, err error) {
	if g.revision == r.rolling {
		r.failRollout(now, err.Error(), false)
		return
	}
	r.note(Note{Warn: true, Text: "phase not applied", Group: g.name, Why: err.Error()})
	g.machine.abort()
	r.enterPhase(now, g)
}

// reapply applies the present phase again after its inputs have changed. If
// that fails, the group keeps the set that it has.
func (r *Rollout) reapply(now time.Time, g *group) {
	if err := r.apply(now, g); err != nil {
		r.note(Note{Warn: true, Text: "phase not applied", Group: g.name, Why: err.Error()})
		r.enterPhase(now, g)
	}
}

// apply applies the set of the group's present phase.
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

// enterPhase records that the group is in another phase.
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

// compose renders layers, replaces quarantined versions and proves the result.
// g is the group that gets the set; nil if none does yet.
func (r *Rollout) compose(l layers, g *group) (resources.Set, error) {
	set, err := l.render(r.cfg.Build)
	if err != nil {
		return resources.Set{}, err
	}
	var h groupSets
	omitted := false // the complete set was proven
	if g != nil {
		h.applied, h.suspended = g.set, g.suspended
		if g.machine.phase != Idle {
			h.acked = resources.Set{}.WithTypes(g.ackedSet, awaitedTypes[Add]...)
		}
		if g.machine.phase != Idle && g.reverting {
			// The nodes keep routes to these resources until they have reverted.
			h.passed = resources.Set{}.WithTypes(g.passedSet, awaitedTypes[Add]...)
		}
		// The stable revision has no replacement.
		set, omitted = r.omitRefused(set, g.set, g.revision == r.stable)
	}
	admitted, lost, err := r.replaceRefused(set, h)
	if err != nil || omitted {
		return admitted, err
	}
	if err := r.cfg.Prove(admitted); err != nil {
		return resources.Set{}, err
	}
	if lost != "" {
		if err := r.cfg.CheckMembers(admitted, l.routes.View); err != nil {
			return resources.Set{}, fmt.Errorf("%s; no good version can replace it: %w", lost, err)
		}
	}
	return admitted, nil
}
