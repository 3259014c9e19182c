package publish

import (
	"fmt"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// The events of a simulation.

// observe passes the state of the nodes to the publisher.
func (sim *simulation) observe() {
	for _, n := range sim.nodes {
		if n.excused && n.isCurrent() {
			n.excused = false
		}
		n.updateExcused()
	}
	select {
	case <-sim.pub.timer.C:
		sim.logf("time passes")
		sim.pub.observeNodes()
	default:
	}
	select {
	case <-sim.signal:
	case <-sim.pub.cfg.Ledger.Changed():
	default:
		return
	}
	sim.pub.observeNodes()
}

// deliverOne delivers one message, and reports whether there was one.
func (sim *simulation) deliverOne() bool {
	type way struct {
		n    *simNode
		typ  string
		down bool
	}
	var ways []way
	for _, n := range sim.nodes {
		if !n.up {
			continue
		}
		for _, typ := range simTypes {
			if sub := n.subs[typ]; sub != nil {
				if len(sub.toServer) > 0 {
					ways = append(ways, way{n, typ, false})
				}
				if len(sub.toNode) > 0 {
					ways = append(ways, way{n, typ, true})
				}
			}
		}
	}
	if len(ways) == 0 {
		return false
	}
	w := ways[sim.r.IntN(len(ways))]
	if w.down {
		w.n.receiveResponse(w.typ)
	} else {
		w.n.receiveRequest(w.typ)
	}
	return true
}

// submitRandom submits a random snapshot.
func (sim *simulation) submitRandom(epoch policies.Epoch, before resources.View) resources.View {
	v := before
	if epoch > 1 && sim.r.IntN(3) == 0 { // health and weights
		v.Endpoints = slices.Clone(v.Endpoints)
		e := &v.Endpoints[sim.r.IntN(len(v.Endpoints))]
		e.Health, e.Weight = resources.Health(sim.r.IntN(2)), uint32(1+sim.r.IntN(4))
	} else {
		v = resources.View{Models: []resources.Model{{Name: "m"}}}
		if sim.r.IntN(4) == 0 {
			v.Settings.AccessLog = fmt.Sprint("log", epoch)
		} else {
			v.Settings = before.Settings
		}
		stages := 1 + sim.r.IntN(3)
		p := policies.Plan{Model: "m", Epoch: epoch, Stages: make([]policies.Stage, stages)}
		for i := range 5 {
			if epoch > 1 && sim.r.IntN(6) == 0 && i >= stages {
				continue // removed
			}
			id := policies.ReplicaID(fmt.Sprint("r", i))
			k := sim.r.IntN(stages)
			if i < stages {
				k = i
			}
			p.Stages[k].Replicas = append(p.Stages[k].Replicas, id)
			v.Endpoints = append(v.Endpoints, resources.Endpoint{
				Replica: policies.Replica{ID: id, Model: "m", Address: fmt.Sprint("10.0.0.", i, ":1")},
				Weight:  1,
			})
		}
		v.Plans = []policies.Plan{p}
	}
	s, err := textSet(v)
	if err != nil {
		sim.failf("%v", err)
	}
	sim.plans[fmt.Sprint("plan ", v.Plans[0].Epoch)] = v.Plans[0]
	if epoch == 1 {
		for _, typ := range simTypes {
			for _, r := range s.All(typ) {
				sim.neverRefused[r.Version] = true
			}
		}
	}
	sim.logf("want %s", s.Get(resources.RouteType, resources.RouteName).Body)
	sim.wanted = sim.said
	sim.pub.Submit(v)
	sim.pub.applySubmitted()
	return v
}

// settle delivers all messages and advances the time until nothing happens.
func (sim *simulation) settle() {
	quiet := 0
	for range 60 {
		for _, n := range sim.nodes {
			if !n.up {
				n.connect()
			}
		}
		for sim.deliverOne() {
			sim.observe()
		}
		sim.observe()
		time.Sleep(time.Second)
		sim.observe()
		if quiet++; !sim.isSettled() {
			quiet = 0
		}
		if quiet == 3 {
			return
		}
	}
}

// isSettled reports whether there is nothing left to do.
func (sim *simulation) isSettled() bool {
	for _, g := range sim.pub.state.Groups {
		if g.phase != idle || len(g.fenced) > 0 {
			return false
		}
	}
	return !slices.ContainsFunc(sim.nodes, func(n *simNode) bool { return !n.isCurrent() })
}

// The invariants of a simulation.

// checkSent checks a resource that is sent to a node.
func (sim *simulation) checkSent(n *simNode, r *resources.Resource) {
	for _, f := range sim.pub.rollout.refused {
		if r.Type == resources.RouteType && string(r.Body) == fmt.Sprint("plan ", f.Epoch) {
			sim.failf("%s is sent %q, which %s refused", n.id, r.Body, f.Node)
		}
	}
	if r.Type != resources.RouteType || string(r.Body) != fmt.Sprint("plan ", sim.pub.rollout.status().rolling) {
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
	for _, g := range n.sim.pub.rollout.groups { // not the status, which shows it when the step has ended
		n.excused = n.excused || g.fenced[n.id] != ""
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
