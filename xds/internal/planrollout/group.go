package planrollout

import (
	"maps"
	"time"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// awaitedTypes lists the types whose acknowledgement each phase waits for. A follower gets
// the next plan at once in Add, with the replicas of both.
var awaitedTypes = map[Phase][]string{
	Add:  {resources.ClusterType, resources.EndpointType, resources.RoutingType},
	Flip: {resources.RouteType, resources.ListenerType},
}

// AwaitedTypes lists the types whose acknowledgement some phase waits for.
func AwaitedTypes() []string {
	return append(append([]string(nil), awaitedTypes[Add]...), awaitedTypes[Flip]...)
}

// maxPhaseTimeouts bounds the length of a phase, in multiples of AckTimeout,
// however many nodes become late one after another.
const maxPhaseTimeouts = 3

// revision is one plan; the health and weights of its endpoints may change.
type revision struct {
	snapshot *Snapshot // with the newest health and weights
	urgent   bool
}

// group is the state of one group.
type group struct {
	name     string
	machine  phaseMachine
	revision *revision

	hasSet      bool
	set         resources.Set // applied to the group
	serial      uint64        // counts changes of set and phase
	serialPhase Phase         // phase that serial was counted for

	observed   bool // an observation with this serial has come
	nodes      int  // as last observed
	phaseStart time.Time
	lateSince  map[string]time.Time   // by node, in this phase
	othersLate bool                   // nodes that do not count are late
	fenced     map[string]string      // nodes that the group does not wait for, with the reason
	refusals   map[refusalKey]refusal // of what the group has
	reverting  bool                   // the group is reverting and starts nothing new

	removed         []resources.Endpoint
	removeBy        time.Time // when removed endpoints are dropped at the latest
	requestsUnknown bool      // whether removed has requests is not known yet
}

// displayPhase returns the phase, or Retire while removed endpoints drain.
func (g *group) displayPhase() Phase {
	if g.machine.phase == Idle && len(g.removed) > 0 {
		return Retire
	}
	return g.machine.phase
}

// awaitedTypes lists the types whose acknowledgement the group waits for.
func (g *group) awaitedTypes() []string {
	if g.machine.phase == Idle && g.reverting {
		return AwaitedTypes()
	}
	return awaitedTypes[g.machine.phase]
}

// mayFence reports whether a late node may be fenced; it may be only if it delays
// something.
func (g *group) mayFence() bool {
	return g.machine.phase == Add || g.machine.phase == Flip || g.reverting
}

// applyObservation records which nodes are late and since when, and returns the
// nodes that have caught up. withBehind says that the observation has Behind. Nodes that
// refuse the plan in progress are not late.
func (g *group) applyObservation(f Observation, now time.Time, withBehind bool, refuses func(id string) bool) (caughtUp []string) {
	g.observed, g.nodes, g.othersLate = true, f.Nodes, f.OthersLate
	if withBehind {
		for _, id := range sortedKeys(g.fenced) {
			if !f.Behind[id] {
				delete(g.fenced, id)
				caughtUp = append(caughtUp, id)
			}
		}
		g.prune(f.Behind)
	}
	excused := func(id string) bool { return g.isFenced(id) || refuses(id) }
	maps.DeleteFunc(g.lateSince, func(id string, _ time.Time) bool { return !f.Late[id] || excused(id) })
	for id := range f.Late {
		if _, ok := g.lateSince[id]; !ok && !excused(id) {
			g.lateSince[id] = now
		}
	}
	return caughtUp
}

func (g *group) isFenced(id string) bool { _, ok := g.fenced[id]; return ok }

// fenceLate fences the nodes that were late for the whole timeout and returns
// them.
func (g *group) fenceLate(now time.Time, bound time.Duration) (ids []string) {
	if !g.mayFence() {
		return nil
	}
	over := now.Sub(g.phaseStart) >= maxPhaseTimeouts*bound
	for _, id := range sortedKeys(g.lateSince) {
		if over || now.Sub(g.lateSince[id]) >= bound {
			delete(g.lateSince, id)
			g.fenced[id] = "did not acknowledge phase " + g.displayPhase().String()
			ids = append(ids, id)
		}
	}
	return ids
}

// fenceDeadline returns when the group has to be observed next although no node answers;
// zero: never.
func (g *group) fenceDeadline(now time.Time, bound time.Duration) (at time.Time) {
	if !g.mayFence() || len(g.lateSince) == 0 {
		if end := g.phaseStart.Add(bound); g.mayFence() && g.othersLate && now.Before(end) {
			return end
		}
		return at
	}
	at = g.phaseStart.Add(maxPhaseTimeouts * bound)
	for _, since := range g.lateSince {
		if end := since.Add(bound); end.Before(at) {
			at = end
		}
	}
	return at
}

// isSettled reports whether the group waits for no node.
func (g *group) isSettled(now time.Time, bound time.Duration) bool {
	return g.observed && len(g.lateSince) == 0 && (!g.othersLate || now.Sub(g.phaseStart) >= bound)
}
