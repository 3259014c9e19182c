package planrollout

import (
	"fmt"
	"slices"
	"time"
)

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
		r.failRollout(now, err.Error())
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
	set, err := l.render(r.cfg.Build)
	if err == nil {
		err = r.cfg.Prove(set)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", g.machine.phase, err)
	}
	if !g.hasSet || !set.Equal(g.set) {
		g.set, g.hasSet = set, true
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
