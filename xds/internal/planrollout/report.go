package planrollout

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// nextWake returns the time of the next Observe that is due without an event.
func (r *Rollout) nextWake(now time.Time) (at time.Time) {
	soonest := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	for _, g := range r.groups {
		soonest(g.fenceDeadline(now, r.cfg.AckTimeout))
		if len(g.removed) > 0 {
			soonest(now.Add(r.cfg.PollInterval))
			soonest(g.removeBy)
		}
		if r.rolling != nil && g.revision == r.rolling && g.machine.phase == Watch {
			if end := r.lastSettled.Add(r.cfg.Watch); now.Before(end) {
				soonest(end)
				soonest(now.Add(r.cfg.PollInterval))
			}
		}
	}
	return at
}

// needsBehind reports whether the group needs Observation.Behind.
func (r *Rollout) needsBehind(g *group) bool {
	return len(g.fenced)+len(g.refusals) > 0
}

// Queries lists the queries that the next Observe has to answer.
func (r *Rollout) Queries() []Query {
	out := make([]Query, 0, len(r.cfg.Groups))
	for _, name := range r.cfg.Groups {
		g := r.groups[name]
		n := Query{Group: name, Serial: g.serial, Set: g.set, Types: g.awaitedTypes(), WantBehind: r.needsBehind(g)}
		if g.revision == r.rolling && g.machine.phase == Watch {
			n.TrialSince = r.lastSettled
		}
		if len(g.removed) > 0 {
			n.Removed = removedFrom(g.revision.snapshot.View, g.removed)
		}
		out = append(out, n)
	}
	return out
}

// Report returns the present state.
func (r *Rollout) Report() Report {
	stopped := r.whyStopped()
	out := Report{Blocked: cmp.Or(stopped, r.blocked), Stopped: stopped != ""}
	if r.target != nil {
		out.Target = r.target.Epoch()
	}
	if r.rolling != nil {
		out.Rolling = r.rolling.snapshot.Epoch()
	}
	for _, name := range r.cfg.Groups {
		g := r.groups[name]
		gr := GroupReport{Name: name, Phase: g.displayPhase(), Set: g.set, Nodes: g.nodes, Reverting: g.reverting, Fenced: maps.Clone(g.fenced), Refusing: r.refusing(g), Epoch: r.routeEpoch(g)}
		switch {
		case gr.Phase == Retire:
			gr.Until = g.removeBy
		case gr.Phase == Watch && g.revision == r.rolling:
			gr.Until = r.lastSettled.Add(r.cfg.Watch)
		}
		out.Groups = append(out.Groups, gr)
	}
	return out
}

func (r *Rollout) routeEpoch(g *group) policies.Epoch {
	if !g.hasSet {
		return 0
	}
	return g.machine.layers().routes.Epoch()
}

// Refusals lists the last 16 plans that nodes refused, oldest first.
func (r *Rollout) Refusals() []Refusal { return slices.Clone(r.refused) }

// groupLabel returns a group's name for messages.
func groupLabel(name string) string {
	if name == "" {
		return "default"
	}
	return name
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
