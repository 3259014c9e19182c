package rollout

import (
	"maps"
	"time"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// awaitedTypes are the types that a phase waits for.
var awaitedTypes = map[Phase][]string{
	Add:  {resources.ClusterType, resources.EndpointType},
	Flip: {resources.RouteType, resources.ListenerType},
}

// AwaitedTypes are the types of all gates.
func AwaitedTypes() []string {
	return append(append([]string(nil), awaitedTypes[Add]...), awaitedTypes[Flip]...)
}

// maxPhaseTimeouts is how many bounds a phase lasts at most, so that a fleet in
// motion moves on whoever is late in turn.
const maxPhaseTimeouts = 3

// revision is a plan, under whatever health and weights.
type revision struct {
	table  *Table // with the newest ones
	urgent bool
}

// group is one group's state.
type group struct {
	name     string
	machine  phaseMachine
	revision *revision

	hasSet      bool
	set         resources.Set // what is shown
	serial      uint64        // of the present set and phase
	serialPhase Phase         // of the serial

	observed   bool                 // a fact of the serial has come
	nodes      int                  // of the last fact
	hasAck     bool                 // somebody has what passes the gate
	phaseStart time.Time            // when the phase began
	lateSince  map[string]time.Time // since when nodes that are waited for are late in the phase
	fenced     map[string]string    // nodes that are not waited for, and why
	dissenting map[string]bool      // nodes that refuse what is established

	passedSet      resources.Set // what went through the last gates
	ackedSet       resources.Set // and was acknowledged by somebody
	recorded       bool          // what is shown is in the history
	suspended      map[key]bool  // refused beside something worse; not shown until the group has settled
	suspendedSince time.Time     // since when something is suspended
	reverting      bool          // it goes back, and begins nothing new

	removed         []resources.Endpoint
	removeBy        time.Time // when they are removed at the latest
	requestsUnknown bool      // whether they have requests is not known yet
}

// displayPhase is the phase with Retire.
func (g *group) displayPhase() Phase {
	if g.machine.phase == Idle && len(g.removed) > 0 {
		return Retire
	}
	return g.machine.phase
}

// awaitedTypes are the types that somebody is waited for now.
func (g *group) awaitedTypes() []string {
	if g.machine.phase == Idle && (g.reverting || len(g.suspended) > 0 || !g.recorded) {
		return AwaitedTypes()
	}
	return awaitedTypes[g.machine.phase]
}

// mayFence reports whether a late node may be fenced: it holds something up.
func (g *group) mayFence() bool {
	return g.machine.phase == Add || g.machine.phase == Flip || g.reverting || len(g.suspended) > 0
}

// applyObservation books a fact: who is late since when, who has caught up.
func (g *group) applyObservation(f Observation, now time.Time, asked bool) (caughtUp []string) {
	g.observed, g.nodes, g.hasAck = true, f.Nodes, f.Acked > 0
	if asked {
		for _, id := range sortedKeys(g.fenced) {
			if !f.Behind[id] {
				delete(g.fenced, id)
				caughtUp = append(caughtUp, id)
			}
		}
		maps.DeleteFunc(g.dissenting, func(id string, _ bool) bool { return !f.Behind[id] })
	}
	maps.DeleteFunc(g.lateSince, func(id string, _ time.Time) bool { return !f.Late[id] || g.isFenced(id) })
	for id := range f.Late {
		if _, ok := g.lateSince[id]; !ok && !g.isFenced(id) {
			g.lateSince[id] = now
		}
	}
	return caughtUp
}

func (g *group) isFenced(id string) bool { _, ok := g.fenced[id]; return ok }

// fenceLate stops waiting for nodes that were late for the whole bound, and returns
// them.
func (g *group) fenceLate(now time.Time, bound time.Duration) (ids []string) {
	if !g.mayFence() {
		return nil
	}
	over := now.Sub(g.waitStart()) >= maxPhaseTimeouts*bound
	for _, id := range sortedKeys(g.lateSince) {
		if over || now.Sub(g.lateSince[id]) >= bound {
			delete(g.lateSince, id)
			g.fenced[id] = "does not acknowledge " + g.displayPhase().String()
			if g.dissenting[id] {
				g.fenced[id] = "refuses what all others have"
			}
			ids = append(ids, id)
		}
	}
	return ids
}

// fenceDeadline is when the first late node has used its bound up; zero: never.
func (g *group) fenceDeadline(bound time.Duration) (at time.Time) {
	if !g.mayFence() || len(g.lateSince) == 0 {
		return at
	}
	at = g.waitStart().Add(maxPhaseTimeouts * bound)
	for _, since := range g.lateSince {
		if end := since.Add(bound); end.Before(at) {
			at = end
		}
	}
	return at
}

// waitStart is since when the present phase waits for somebody.
func (g *group) waitStart() time.Time {
	if g.machine.phase == Idle && g.suspendedSince.After(g.phaseStart) {
		return g.suspendedSince
	}
	return g.phaseStart
}

// recordPassed notes what the gate of the present phase has proven; without a witness
// it is nothing.
func (g *group) recordPassed() {
	types := awaitedTypes[g.machine.phase]
	g.passedSet = g.passedSet.With(g.set, types...)
	if g.hasAck {
		g.ackedSet = g.ackedSet.With(g.set, types...)
	} else {
		g.ackedSet = g.ackedSet.With(resources.Set{}, types...)
	}
}
