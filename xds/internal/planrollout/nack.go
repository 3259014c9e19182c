package planrollout

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// A NACK counts against the plan that brought what it refuses. One node of a later group only
// stops the rollout: most often the node is at fault. A canary exists to be believed, and half
// of a group cannot be ignored: these roll the plan back. A NACK of anything else, such as the
// weights of the plan in force, is only shown: the next weights take its place.

// refusalKey identifies the NACKs of a node for a type.
type refusalKey struct{ node, typ string }

// refusal stands until the node has all that its group has, or the group has nothing any more
// of what the node refused.
type refusal struct {
	versions []Version // of the refused responses, those of the last one first
	text     string    // of the last one
	at       time.Time
}

// handleNACK records a NACK, and rolls the plan back if enough nodes refuse it.
func (r *Rollout) handleNACK(now time.Time, e NACK) {
	g := r.groups[e.Group]
	if g == nil || len(e.Resources) == 0 {
		return
	}
	k := refusalKey{e.Node, e.Type}
	before, known := g.refusals[k]
	versions := slices.Clone(e.Resources)
	for _, v := range before.versions {
		if holds(g.set, k.typ, v) && !slices.Contains(versions, v) {
			versions = append(versions, v)
		}
	}
	g.refusals[k] = refusal{versions: versions, text: e.Text, at: now}
	g.nodes = e.Nodes
	if r.isOfPlan(g, k) {
		delete(g.fenced, e.Node) // it is not late: it stops the rollout
	}
	if !known {
		r.note(Note{Warn: true, Text: "node refused a version", Group: g.name, Node: e.Node, Why: r.describe(g, k)})
	}
	r.rollBackRefused(now, g)
}

// prune forgets the refusals of what the set does not have any more, and of nodes that lack
// nothing of it or have left.
func (g *group) prune(behind map[string]bool) {
	maps.DeleteFunc(g.refusals, func(k refusalKey, f refusal) bool {
		return !behind[k.node] || !slices.ContainsFunc(f.versions, func(v Version) bool { return holds(g.set, k.typ, v) })
	})
}

func holds(s resources.Set, typ string, v Version) bool {
	r := s.Get(typ, v.Name)
	return r != nil && r.Version == v.Version
}

// isOfPlan reports whether a refusal is one of the plan in progress: the group has what the
// node refused, and does not have it of the stable plan. In phase Add the routes are still
// those of an earlier plan.
func (r *Rollout) isOfPlan(g *group, k refusalKey) bool {
	if r.rolling == nil || g.revision != r.rolling || g.machine.phase == Add && slices.Contains(awaitedTypes[Flip], k.typ) {
		return false
	}
	return slices.ContainsFunc(g.refusals[k].versions, func(v Version) bool {
		return holds(g.set, k.typ, v) && !holds(r.stable.snapshot.Set, k.typ, v)
	})
}

// refusesPlan reports whether a node refuses the plan in progress.
func (r *Rollout) refusesPlan(g *group, node string) bool {
	for k := range g.refusals {
		if k.node == node && r.isOfPlan(g, k) {
			return true
		}
	}
	return false
}

// planRefusals lists the refusals of the plan in progress in a group by node and type, and
// counts the nodes.
func (r *Rollout) planRefusals(g *group) (list []refusalKey, nodes int) {
	for k := range g.refusals {
		if r.isOfPlan(g, k) {
			list = append(list, k)
		}
	}
	slices.SortFunc(list, func(a, b refusalKey) int {
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.typ, b.typ))
	})
	for i, k := range list {
		if i == 0 || list[i-1].node != k.node {
			nodes++
		}
	}
	return list, nodes
}

// isStopped reports whether a group goes no further with the plan in progress.
func (r *Rollout) isStopped(g *group) bool {
	_, nodes := r.planRefusals(g)
	return nodes > 0
}

// rollBackRefused rolls the plan in progress back if a canary, or half of the connected nodes
// of a group, refuse it. It reports whether it did.
func (r *Rollout) rollBackRefused(now time.Time, g *group) bool {
	list, nodes := r.planRefusals(g)
	canary := len(r.cfg.Groups) > 1 && g.name == r.cfg.Groups[0]
	if nodes == 0 || !canary && 2*nodes < g.nodes {
		return false
	}
	f, typ := g.refusals[list[0]], list[0].typ
	refused := Refusal{
		Epoch: r.rolling.snapshot.Epoch(), Plans: r.rolling.snapshot.replaces(r.stable.snapshot), Type: typ[strings.LastIndexByte(typ, '.')+1:],
		Name: nameRefused(f.versions), Node: list[0].node, Group: g.name, Text: f.text, At: f.at,
	}
	r.refused = append(r.refused, refused)
	r.refused = r.refused[max(0, len(r.refused)-maxRefused):]
	r.out.Refused = append(r.out.Refused, refused)
	r.failRollout(now, r.describe(g, list[0]))
	return true
}

// describe describes what a node refuses, and why.
func (r *Rollout) describe(g *group, k refusalKey) string {
	f := g.refusals[k]
	return fmt.Sprintf("%s %s refused by %s: %s", typeNoun(k.typ), nameRefused(f.versions), k.node, f.text)
}

// nameRefused names the resources of a refused response; the text of the NACK says which of
// several it is about.
func nameRefused(versions []Version) string {
	if len(versions) == 1 {
		return versions[0].Name
	}
	return fmt.Sprintf("%s and %d more", versions[0].Name, len(versions)-1)
}

// refusing describes a refusal of each node that has one.
func (r *Rollout) refusing(g *group) map[string]string {
	out := make(map[string]string)
	for k := range g.refusals {
		if text := r.describe(g, k); out[k.node] == "" || text < out[k.node] {
			out[k.node] = text
		}
	}
	return out
}

// whyStopped says why the rollout is stopped; "" if it is not.
func (r *Rollout) whyStopped() string {
	for _, name := range r.cfg.Groups {
		g := r.groups[name]
		if list, nodes := r.planRefusals(g); nodes > 0 {
			return fmt.Sprintf("stopped in group %s: %s (%d of %d connected nodes; half of them would roll it back)",
				groupLabel(name), r.describe(g, list[0]), nodes, g.nodes)
		}
	}
	return ""
}

// failRollout rolls the plan in progress back in all groups that have it. It is not tried
// again while it is the target.
func (r *Rollout) failRollout(now time.Time, why string) {
	r.failed, r.failedWhy, r.blocked = r.rolling.snapshot, why, why
	r.revertRollout(now, "plan rolled back", why)
}

// revertRollout reverts the groups that have the plan in progress to the stable one.
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
		if r.apply(now, g) != nil {
			g.machine = phaseMachine{live: []*Snapshot{r.stable.snapshot}}
			r.reapply(now, g)
		}
	}
}

// replaces lists the plans of a snapshot that replace those of another one.
func (t *Snapshot) replaces(o *Snapshot) (plans []RefusedPlan) {
	for _, p := range o.View.Plans {
		if hasPlan(t.View, p.Model) && planOf(t.View, p.Model).Epoch != p.Epoch {
			plans = append(plans, RefusedPlan{Model: p.Model, Epoch: planOf(t.View, p.Model).Epoch, Before: p.Epoch})
		}
	}
	return plans
}

// typeNoun returns the name of a type in messages.
func typeNoun(typ string) string {
	switch typ {
	case resources.RouteType:
		return "route table"
	case resources.ListenerType:
		return "listener"
	case resources.ClusterType:
		return "cluster"
	case resources.EndpointType:
		return "endpoints"
	case resources.RoutingType:
		return "plan"
	}
	return "resource"
}
