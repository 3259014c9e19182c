package rollout

import (
	"slices"
	"time"
)

// leave removes departing endpoints when nothing runs on them, or nobody counts.
func (r *Rollout) leave(now time.Time, g *group, f Fact) {
	g.asking = false
	if !f.Known || f.Requests == 0 || !now.Before(g.until) {
		g.leaving = nil
	}
	r.keep(now, g)
}

// advance moves a group on if nobody has to be waited for.
func (r *Rollout) advance(now time.Time, g *group) bool {
	settled := g.seen && len(g.since) == 0
	switch g.m.phase {
	case Add, Flip:
		if !settled {
			return false
		}
		g.pass()
		g.m.settled()
		if g.m.phase == Watch {
			if g.at == r.target {
				r.watch = now
			}
			if g.at == r.target || g.backing {
				r.note(Note{Text: "plan settled in group", Group: g.name, Epoch: g.m.next.Epoch()})
			}
		}
		if err := r.show(now, g); err != nil {
			r.unshown(now, g, err)
		}
		return true
	case Watch:
		if g.at == r.target {
			return false
		}
		r.retire(now, g)
		return true
	}
	if !settled || g.m.empty() {
		return false
	}
	moved := g.backing
	g.backing = false
	if !g.recorded && g.proven && g.at == r.good {
		g.recorded = true
		r.record(g.set)
	}
	if len(g.suspended) > 0 {
		clear(g.suspended)
		r.keep(now, g)
		moved = true
	}
	return moved
}

// retire leaves the old table's members behind. Endpoints that were removed
// stay until it is known whether they have requests.
func (r *Rollout) retire(now time.Time, g *group) {
	r.record(g.acked)
	old := g.m.finish()
	if r.cfg.RetireBound > 0 {
		view := g.at.table.View
		gone := departing(view, old.View.Endpoints)
		if len(gone) > 0 {
			g.until, g.asking = now.Add(r.cfg.RetireBound), true
		}
		g.leaving = departing(view, append(gone, g.leaving...))
	}
	if g.asking {
		r.enter(now, g)
		r.out.Again = true
		return
	}
	r.keep(now, g)
}

// turn decides which group is next.
func (r *Rollout) turn(now time.Time) bool {
	if r.target == nil {
		return r.start(now)
	}
	var populated, empty []*group
	for _, name := range r.cfg.Groups {
		g := r.groups[name]
		switch {
		case g.at == r.target:
			if g.m.phase != Watch {
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
		if !r.target.urgent && now.Before(r.watch.Add(r.cfg.Watch)) {
			return false
		}
		r.bring(now, populated[0])
	case len(empty) > 0:
		for _, g := range empty {
			if r.target != nil {
				r.bring(now, g)
			}
		}
	default:
		r.note(Note{Text: "plan is everywhere", Epoch: r.target.table.Epoch()})
		r.before, r.good, r.target, r.failed, r.held = r.good, r.target, nil, nil, ""
	}
	return true
}

// bring begins with the target in a group.
func (r *Rollout) bring(now time.Time, g *group) {
	g.at = r.target
	r.note(Note{Text: "plan goes to group", Group: g.name, Epoch: r.target.table.Epoch()})
	r.direct(now, g)
}

// start begins with what is wanted, where nothing speaks against it.
func (r *Rollout) start(now time.Time) bool {
	if r.good == nil || r.good.table == r.news || r.good.table.light(r.news) {
		return false
	}
	for _, g := range r.groups {
		if g.backing {
			return false // what went back may not have arrived
		}
	}
	if why := r.hold(r.news); why != "" {
		if why != r.held {
			r.held = why
			r.note(Note{Warn: true, Text: "plan held", Epoch: r.news.Epoch(), Why: why})
		}
		return false
	}
	r.held = ""
	r.target = &edition{table: r.news, urgent: r.urgent}
	first := r.groups[r.cfg.Groups[0]]
	for _, name := range slices.Backward(r.cfg.Groups) {
		if g := r.groups[name]; g.nodes > 0 {
			first = g
		}
	}
	r.bring(now, first)
	return true
}

// hold tells why a table cannot be rolled out, "" if it can.
func (r *Rollout) hold(t *Table) string {
	if r.failed != nil && !r.failed.admissible && r.failed.table.light(t) {
		return r.failed.why
	}
	if len(r.barred) == 0 {
		return ""
	}
	if at := (verdict{news: t, good: r.good.table, bars: r.bars}); at != r.verdict {
		r.verdict, r.verdictWhy = at, r.possible(t)
	}
	return r.verdictWhy
}

// verdict names what hold has judged: it is asked again and again.
type verdict struct {
	news, good *Table
	bars       uint64
}

// possible tells which step towards a table is not, before the first is taken;
// "" when all are.
func (r *Rollout) possible(t *Table) string {
	if why := r.steered(t.Set); why != "" {
		return why
	}
	old := r.good.table
	both, err := r.compose(layers{routes: t, newest: t, live: []*Table{old}}, nil)
	if err == nil {
		err = r.cfg.Covers(both, old.View)
	}
	if err == nil {
		_, err = r.compose(layers{routes: t, newest: t}, nil)
	}
	if err != nil {
		return err.Error()
	}
	return ""
}
