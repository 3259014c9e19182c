package publish

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// phase is the step of a group's transition from one plan to the next.
type phase uint8

const (
	idle       phase = iota // the group has one plan
	add                     // old routes; endpoints of both plans
	flip                    // new routes; endpoints as in add
	watch                   // as flip, acknowledged; the plan is on trial and the other groups follow
	retirement              // as idle, while removed endpoints drain: shown only
)

// String returns the phase as GET /status shows it.
func (p phase) String() string { return [...]string{"idle", "add", "flip", "watch", "retire"}[p] }

// phaseTypes lists the types whose acknowledgement each phase waits for. A follower gets
// the next plan at once in add, with the replicas of both.
var phaseTypes = map[phase][]string{
	add:  {resources.ClusterType, resources.EndpointType, resources.RoutingType},
	flip: {resources.RouteType, resources.ListenerType},
}

// awaitedTypes are the types that some phase waits for.
var awaitedTypes = slices.Concat(phaseTypes[add], phaseTypes[flip])

// maxPhaseTimeouts bounds the length of a phase, in multiples of AckTimeout,
// however many nodes become late one after another.
const maxPhaseTimeouts = 3

// group is the state of one group.
type group struct {
	name    string
	phase   phase
	live    []*snapshot // whose routes a node may have, the last settled one first; two in a rollback, else one
	next    *snapshot   // the snapshot that the phase leads to; nil in idle
	started bool        // it has the plan in progress

	set      resources.Set // that its nodes are sent
	observed bool          // its nodes were observed after the last change of set or phase

	nodes      int // connected nodes that count, as last observed
	phaseStart time.Time
	lateSince  map[string]time.Time // by node, in this phase
	othersLate bool                 // nodes that do not count are late
	fenced     map[string]string    // nodes that the group does not wait for, with the reason
	refusals   []refusal            // of what the group has, sorted by node and type
	reverting  bool                 // a node has not acknowledged its rollback

	removed  []resources.Endpoint // endpoints that no plan has any more, and that have requests
	removeBy time.Time            // when they are dropped at the latest
}

// setPhase begins a phase. The caller then applies its set.
func (g *group) setPhase(now time.Time, p phase) {
	g.phase, g.phaseStart, g.observed = p, now, false
	clear(g.lateSince)
}

// shownPhase returns the phase, or retirement while removed endpoints drain.
func (g *group) shownPhase() phase {
	if g.phase == idle && len(g.removed) > 0 {
		return retirement
	}
	return g.phase
}

// newest returns the snapshot that provides the endpoints; nil if there is none yet.
func (g *group) newest() *snapshot {
	if g.next == nil && len(g.live) > 0 {
		return g.live[0]
	}
	return g.next
}

// routes returns the snapshot that provides routes and listeners.
func (g *group) routes() *snapshot {
	if g.phase == add {
		return g.live[0]
	}
	return g.newest()
}

// render builds the set of the present phase. It does not prove it.
func (g *group) render(build func(resources.View) (resources.Set, error)) (resources.Set, error) {
	endpoints := g.newest().set
	u, more := g.newest().view, false
	if g.phase != idle {
		u, more = union(u, g.live)
	}
	for _, e := range removedFrom(u, g.removed) {
		e.Health = resources.Draining
		u.Endpoints, more = append(slices.Clip(u.Endpoints), e), true
	}
	if more {
		var err error
		if endpoints, err = build(u); err != nil {
			return resources.Set{}, err
		}
	}
	return endpoints.WithTypes(g.routes().set, phaseTypes[flip]...), nil
}

// query asks for the state of a group's nodes.
type query struct {
	group  string
	set    resources.Set     // that the group is sent
	types  []string          // that the group waits for
	fenced map[string]string // nodes whose fence ends when they lack nothing
}

// observation is the state of a group's nodes.
type observation struct {
	nodes      int             // nodes that count and are connected, or refuse and may reconnect
	late       map[string]bool // nodes that lack resources of query.types
	behind     map[string]bool // nodes of query.fenced that lack any resource
	othersLate bool            // a node that does not count is late
	refusals   []refusal       // of what the group has, by nodes that still lack it, sorted by node and type
}

// awaitedTypes lists the types whose acknowledgement the group waits for.
func (g *group) awaitedTypes() []string {
	if g.phase == idle && g.reverting {
		return awaitedTypes
	}
	return phaseTypes[g.phase]
}

// mayFence reports whether late nodes delay the group, and are fenced for that.
func (g *group) mayFence() bool { return g.phase == add || g.phase == flip || g.reverting }

// applyObservation records which nodes are late and since when, and fences those that were late for the
// whole timeout. Nodes that refuse the plan in progress are not late.
func (r *rollout) applyObservation(now time.Time, g *group, f observation) {
	g.observed, g.nodes, g.othersLate = true, f.nodes, f.othersLate
	g.refusals = f.refusals
	for _, id := range slices.Sorted(maps.Keys(g.fenced)) {
		if !f.behind[id] {
			delete(g.fenced, id)
			r.logGroup(slog.LevelInfo, "node caught up", g, "node", id)
		}
	}
	refusers := make(map[string]bool)
	for _, refused := range r.planRefusals(g) {
		refusers[refused.node] = true
		delete(g.fenced, refused.node)
	}
	excused := func(id string) bool { return g.fenced[id] != "" || refusers[id] }
	maps.DeleteFunc(g.lateSince, func(id string, _ time.Time) bool { return !f.late[id] || excused(id) })
	for id := range f.late {
		if _, ok := g.lateSince[id]; !ok && !excused(id) {
			g.lateSince[id] = now
		}
	}
	if !g.mayFence() {
		return
	}
	over := now.Sub(g.phaseStart) >= maxPhaseTimeouts*r.cfg.AckTimeout
	for _, id := range slices.Sorted(maps.Keys(g.lateSince)) {
		if over || now.Sub(g.lateSince[id]) >= r.cfg.AckTimeout {
			delete(g.lateSince, id)
			g.fenced[id] = fmt.Sprintf("did not acknowledge phase %s", g.shownPhase())
			r.logGroup(slog.LevelWarn, "node fenced", g, "node", id, "reason", g.fenced[id])
		}
	}
}

// fenceDeadline returns when the group has to be observed next although no node answers;
// zero: never.
func (g *group) fenceDeadline(now time.Time, timeout time.Duration) (at time.Time) {
	if !g.mayFence() {
		return at
	}
	if len(g.lateSince) == 0 {
		if end := g.phaseStart.Add(timeout); g.othersLate && now.Before(end) {
			return end
		}
		return at
	}
	at = g.phaseStart.Add(maxPhaseTimeouts * timeout)
	for _, since := range g.lateSince {
		if end := since.Add(timeout); end.Before(at) {
			at = end
		}
	}
	return at
}

// isSettled reports whether the group waits for no node.
func (g *group) isSettled(now time.Time, timeout time.Duration) bool {
	return g.observed && len(g.lateSince) == 0 && (!g.othersLate || now.Sub(g.phaseStart) >= timeout)
}
