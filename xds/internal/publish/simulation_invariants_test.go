package publish

import (
	"fmt"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// The invariants of a simulation.

// checkSent checks a resource that is sent to a node.
func (sim *simulation) checkSent(n *simNode, r *resources.Resource) {
	for _, f := range sim.pub.rollout.Refusals() {
		if r.Type == resources.RouteType && string(r.Body) == fmt.Sprint("plan ", f.Epoch) {
			sim.failf("%s is sent %q, which %s refused", n.id, r.Body, f.Node)
		}
	}
	if r.Type != resources.RouteType || string(r.Body) != fmt.Sprint("plan ", sim.pub.rollout.Report().Rolling) {
		return
	}
	// A plan goes to a group only after the groups before it have it. Empty groups get it
	// together, and nodes may join them then.
	order := sim.shownIn[r.Version]
	for _, o := range sim.nodes {
		if !slices.Contains(order[:slices.Index(order, n.group)], o.group) || min(sim.wanted, sim.begun[r.Version]) <= sim.churn || !o.mustBeAwaited() {
			continue
		}
		shown, has := sim.shown[o.group].Get(r.Type, r.Name), o.has[r.Type][r.Name]
		if shown.Version == r.Version && (has == nil || has.Version != r.Version) {
			sim.failf("%s is sent %q, which %s of an earlier group has not acknowledged", n.id, r.Body, o.id)
		}
	}
}

// updateExcused records that, as far as the publisher knows, the node was away
// or late for longer than the timeout. It counts again once it has its whole
// set.
func (n *simNode) updateExcused() {
	for _, sub := range n.subs {
		if !n.disconnectedAt.IsZero() && !sub.begun && time.Since(n.disconnectedAt) >= reconnectTime {
			n.excused = true
		}
	}
	for _, g := range n.sim.pub.state.report.Groups {
		if _, fenced := g.Fenced[n.id]; fenced {
			n.excused = true
		}
	}
}

// mustBeAwaited reports whether the publisher must wait for the node.
func (n *simNode) mustBeAwaited() bool {
	n.updateExcused()
	if !n.up || n.excused || !n.ready || len(n.has[resources.RouteType]) == 0 {
		return false
	}
	return true
}

// checkRoutes checks a node's routes against its clusters and endpoints.
func (n *simNode) checkRoutes() {
	if !n.mustBeAwaited() {
		return
	}
	routes := n.has[resources.RouteType][resources.RouteName]
	plan := n.sim.plans[string(routes.Body)]
	for k := range plan.Stages {
		if n.has[resources.ClusterType][clusterOf(k)] == nil {
			n.sim.failf("%s: routes %q lead to missing cluster %s", n.id, routes.Body, clusterOf(k))
		}
	}
	if missing := missingMember(plan, func(k int) *resources.Resource {
		return n.has[resources.EndpointType][serviceOfStage(k)]
	}); missing != "" {
		n.sim.failf("%s: routes %q, but %s", n.id, routes.Body, missing)
	}
}
