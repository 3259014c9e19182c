package publish

import (
	"cmp"
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// A NACK counts against the plan that brought what it refuses. One node of a later group only
// stops the rollout: most often the node is at fault. A canary exists to be believed, and half
// of a group cannot be ignored: these roll the plan back. A NACK of anything else, such as the
// weights of the plan in force, is only shown: the next weights take its place.

// Refusal is a plan that was rolled back because a canary or half of a group refused it, in the
// JSON form of GET /status.
type Refusal struct {
	Epoch policies.Epoch `json:"epoch"` // of the newest plan of the refused snapshot
	Plans []RefusedPlan  `json:"-"`     // of the snapshot, that would have replaced others
	Type  string         `json:"type"`  // of what was refused: the last part of the type URL
	Name  string         `json:"name"`
	Node  string         `json:"node"`
	// Refusers are all nodes of the group that refused it, of which Node is the first.
	Refusers []string  `json:"-"`
	Group    string    `json:"group,omitempty"`
	Text     string    `json:"text"` // the proxy's error text, redacted
	At       time.Time `json:"at"`
}

// RefusedPlan is a model's plan in a refused snapshot.
type RefusedPlan struct {
	Model         string
	Epoch, Before policies.Epoch // Before is of the plan that stays
}

// refusal is what a node refuses of one type.
type refusal struct {
	node, typ string
	versions  []version // of the refused responses, those of the last one first; at least one
	text      string    // of the last one, redacted
	at        time.Time
	observed  bool // by the rollout
}

// version is one version of a named resource.
type version struct{ name, version string }

func (v version) isIn(s resources.Set, typ string) bool {
	r := s.Get(typ, v.name)
	return r != nil && r.Version == v.version
}

// planRefusals lists the refusals of the plan in progress in a group: the group has what the node
// refused, and does not have it of the stable plan.
func (r *rollout) planRefusals(g *group) (list []refusal) {
	if !g.started {
		return nil
	}
	for _, f := range g.refusals {
		for _, v := range f.versions {
			if v.isIn(g.set, f.typ) && !v.isIn(r.stable.set, f.typ) {
				list = append(list, f)
				break
			}
		}
	}
	return list
}

// isStopped reports whether a group goes no further with the plan in progress.
func (r *rollout) isStopped(g *group) bool { return len(r.planRefusals(g)) > 0 }

// countNodes counts the nodes of refusals, which are sorted by node.
func countNodes(list []refusal) (nodes int) {
	for i, f := range list {
		if i == 0 || list[i-1].node != f.node {
			nodes++
		}
	}
	return nodes
}

// rollBackRefused rolls the plan in progress back if a canary, or half of the connected nodes
// of a group, refuse it. It reports whether it did.
func (r *rollout) rollBackRefused(now time.Time, g *group) bool {
	list := r.planRefusals(g)
	canary := len(r.groups) > 1 && g == r.groups[0]
	if len(list) == 0 || !canary && 2*countNodes(list) < g.nodes {
		return false
	}
	f := list[0]
	refused := Refusal{
		Epoch: r.rolling.epoch(), Plans: r.rolling.replaces(r.stable), Type: resources.ShortType(f.typ),
		Name: f.name(), Node: f.node, Group: g.name, Text: f.text, At: f.at,
	}
	for _, r := range list {
		refused.Refusers = append(refused.Refusers, r.node)
	}
	r.refused = append(r.refused, refused)
	r.refused = r.refused[max(0, len(r.refused)-maxRefused):]
	r.fail(now, f.String())
	if r.cfg.OnRefusal != nil {
		r.cfg.OnRefusal(refused)
	}
	return true
}

// typeNouns are the names of types in messages.
var typeNouns = map[string]string{
	resources.RouteType: "route table", resources.ListenerType: "listener", resources.ClusterType: "cluster",
	resources.EndpointType: "endpoints", resources.RoutingType: "plan",
}

// String describes what a node refuses, and why.
func (f refusal) String() string {
	return fmt.Sprintf("%s %s refused by %s: %s", cmp.Or(typeNouns[f.typ], "resource"), f.name(), f.node, f.text)
}

// name names the resources of a refused response; the text of the NACK says which of several
// it is about.
func (f refusal) name() string {
	if len(f.versions) == 1 {
		return f.versions[0].name
	}
	return fmt.Sprintf("%s and %d more", f.versions[0].name, len(f.versions)-1)
}

// whyStopped says why the rollout is stopped; "" if it is not.
func (r *rollout) whyStopped() string {
	for _, g := range r.groups {
		if list := r.planRefusals(g); len(list) > 0 {
			return fmt.Sprintf("stopped in group %s: %s (%d of %d connected nodes; half of them would roll it back)",
				groupLabel(g.name), list[0], countNodes(list), g.nodes)
		}
	}
	return ""
}

// replaces lists the plans of a snapshot that replace those of another one.
func (t *snapshot) replaces(o *snapshot) (plans []RefusedPlan) {
	for _, p := range o.view.Plans {
		if q, ok := t.view.PlanOf(p.Model); ok && q.Epoch != p.Epoch {
			plans = append(plans, RefusedPlan{Model: p.Model, Epoch: q.Epoch, Before: p.Epoch})
		}
	}
	return plans
}
