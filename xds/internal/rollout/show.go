package rollout

import (
	"fmt"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// force shows the group's phase, or its edition alone where that is not
// possible.
func (r *Rollout) force(now time.Time, g *group) {
	if r.show(now, g) != nil {
		g.m = machine{live: []*Table{g.at.table}}
		r.keep(now, g)
	}
}

// direct begins to bring a group to its edition's table.
func (r *Rollout) direct(now time.Time, g *group) {
	g.m.want(g.at.table)
	if err := r.show(now, g); err != nil {
		r.unshown(now, g, err)
	}
}

// unshown ends a phase that could not be shown.
func (r *Rollout) unshown(now time.Time, g *group, err error) {
	if g.at == r.target {
		r.fail(now, err.Error(), false)
		return
	}
	r.note(Note{Warn: true, Text: "phase not shown", Group: g.name, Why: err.Error()})
	g.m.abort()
	r.enter(now, g)
}

// keep shows the present phase again, after something about it has changed. What
// cannot be shown leaves what is.
func (r *Rollout) keep(now time.Time, g *group) {
	if err := r.show(now, g); err != nil {
		r.note(Note{Warn: true, Text: "phase not shown", Group: g.name, Why: err.Error()})
		r.enter(now, g)
	}
}

// show shows what the group's machine says.
func (r *Rollout) show(now time.Time, g *group) error {
	l := g.m.layers()
	if !g.asking {
		l.leaving = g.leaving
	}
	set, err := r.compose(l, g)
	if err != nil {
		return fmt.Errorf("%s: %w", g.m.phase, err)
	}
	if !g.shown || !set.Equal(g.set) {
		g.set, g.shown, g.recorded = set, true, false
		g.serial++
		g.seen = false
		r.out.Again = true
		r.out.Shows = slices.DeleteFunc(r.out.Shows, func(s Show) bool { return s.Group == g.name })
		r.out.Shows = append(r.out.Shows, Show{Group: g.name, Set: set, Phase: g.m.phase, Epoch: l.routes.Epoch()})
	}
	r.enter(now, g)
	return nil
}

// enter books that the group is in another phase.
func (r *Rollout) enter(now time.Time, g *group) {
	if g.phase == g.m.phase {
		return
	}
	g.phase, g.entered = g.m.phase, now
	clear(g.since)
	g.serial++
	g.seen = false
	r.out.Again = true
}

// compose renders layers, without what was refused, and proves them. g is whom
// they are for, nil for nobody yet.
func (r *Rollout) compose(l layers, g *group) (resources.Set, error) {
	set, err := l.render(r.cfg.Build)
	if err != nil {
		return resources.Set{}, err
	}
	var h holding
	withheld := false // it was proven with what it lacks then
	if g != nil {
		h.shown, h.suspended = g.set, g.suspended
		if g.m.phase != Idle {
			h.acked = resources.Set{}.With(g.acked, gates[Add]...)
		}
		if g.m.phase != Idle && g.backing {
			// Who took it has routes that lead there until it has gone back.
			h.passed = resources.Set{}.With(g.passed, gates[Add]...)
		}
		// What all groups are to have cannot be exchanged for something else.
		set, withheld = r.withhold(set, g.set, g.at == r.good)
	}
	admitted, lost, err := r.admit(set, h)
	if err != nil || withheld {
		return admitted, err
	}
	if err := r.cfg.Prove(admitted); err != nil {
		return resources.Set{}, err
	}
	if lost != "" {
		if err := r.cfg.Covers(admitted, l.routes.View); err != nil {
			return resources.Set{}, fmt.Errorf("%s; no good version can stand in: %w", lost, err)
		}
	}
	return admitted, nil
}
