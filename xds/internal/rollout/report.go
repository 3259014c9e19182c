package rollout

import (
	"maps"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// wake is when facts are due that nobody signals.
func (r *Rollout) wake(now time.Time) (at time.Time) {
	soonest := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	for _, g := range r.groups {
		soonest(g.deadline(r.cfg.Bound))
		if len(g.leaving) > 0 {
			soonest(now.Add(r.cfg.Poll))
			soonest(g.until)
		}
		if r.target != nil && g.at == r.target && g.m.phase == Watch {
			if end := r.watch.Add(r.cfg.Watch); now.Before(end) {
				soonest(end)
				soonest(now.Add(r.cfg.Poll))
			}
		}
	}
	return at
}

// asks reports whether it matters who is behind in anything.
func (r *Rollout) asks(g *group) bool { return len(g.fenced)+len(g.lonely) > 0 }

// Needs lists what is to be found out for the next Seen.
func (r *Rollout) Needs() []Need {
	out := make([]Need, 0, len(r.cfg.Groups))
	for _, name := range r.cfg.Groups {
		g := r.groups[name]
		n := Need{Group: name, Serial: g.serial, Set: g.set, Types: g.waits(), Behind: r.asks(g)}
		if g.at == r.target && g.m.phase == Watch {
			n.Watched = r.watch
		}
		if len(g.leaving) > 0 {
			n.Leaving = departing(g.at.table.View, g.leaving)
		}
		out = append(out, n)
	}
	return out
}

// Report describes the present state.
func (r *Rollout) Report() Report {
	out := Report{Held: r.held}
	if r.news != nil {
		out.Wanted = r.news.Epoch()
	}
	if r.target != nil {
		out.Target = r.target.table.Epoch()
	}
	for _, name := range r.cfg.Groups {
		g := r.groups[name]
		gr := GroupReport{Name: name, Phase: g.display(), Set: g.set, Nodes: g.nodes, Kept: r.kept(g.set), Backing: g.backing, Fenced: maps.Clone(g.fenced), Epoch: r.epoch(g)}
		switch {
		case gr.Phase == Retire:
			gr.Until = g.until
		case gr.Phase == Watch && g.at == r.target:
			gr.Until = r.watch.Add(r.cfg.Watch)
		}
		out.Groups = append(out.Groups, gr)
	}
	return out
}

func (r *Rollout) epoch(g *group) policies.Epoch {
	if !g.shown {
		return 0
	}
	return g.m.layers().routes.Epoch()
}

// Refusals lists what is quarantined, oldest first.
func (r *Rollout) Refusals() []Refusal {
	out := make([]Refusal, 0, len(r.order))
	for _, k := range r.order {
		out = append(out, r.barred[k])
	}
	return out
}

// display is a group's name for people.
func display(name string) string {
	if name == "" {
		return "of all others"
	}
	return name
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
