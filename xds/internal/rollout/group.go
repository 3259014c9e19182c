package rollout

import (
	"maps"
	"time"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// gates are the types that a phase waits for.
var gates = map[Phase][]string{
	Add:  {resources.ClusterType, resources.EndpointType},
	Flip: {resources.RouteType, resources.ListenerType},
}

// Gated are the types of all gates.
func Gated() []string { return append(append([]string(nil), gates[Add]...), gates[Flip]...) }

// phaseBounds is how many bounds a phase lasts at most, so that a fleet in
// motion moves on whoever is late in turn.
const phaseBounds = 3

// edition is a plan, under whatever health and weights.
type edition struct {
	table  *Table // with the newest ones
	urgent bool
}

// group is one group's state.
type group struct {
	name string
	m    machine
	at   *edition

	shown  bool
	set    resources.Set // what is shown
	serial uint64        // of the present set and phase
	phase  Phase         // of the serial

	seen    bool                 // a fact of the serial has come
	nodes   int                  // of the last fact
	proven  bool                 // somebody has what passes the gate
	entered time.Time            // when the phase began
	since   map[string]time.Time // since when nodes that are waited for are late in the phase
	fenced  map[string]string    // nodes that are not waited for, and why
	lonely  map[string]bool      // nodes that refuse what is established

	passed    resources.Set // what went through the last gates
	acked     resources.Set // and was acknowledged by somebody
	recorded  bool          // what is shown is in the history
	suspended map[key]bool  // refused beside something worse; not shown until the group has settled
	held      time.Time     // since when something is suspended
	backing   bool          // it goes back, and begins nothing new

	leaving []resources.Endpoint
	until   time.Time // when they are removed at the latest
	asking  bool      // whether they have requests is not known yet
}

// display is the phase with Retire.
func (g *group) display() Phase {
	if g.m.phase == Idle && len(g.leaving) > 0 {
		return Retire
	}
	return g.m.phase
}

// waits are the types that somebody is waited for now.
func (g *group) waits() []string {
	if g.m.phase == Idle && (g.backing || len(g.suspended) > 0 || !g.recorded) {
		return Gated()
	}
	return gates[g.m.phase]
}

// patient reports whether a late node may be fenced: it holds something up.
func (g *group) patient() bool {
	return g.m.phase == Add || g.m.phase == Flip || g.backing || len(g.suspended) > 0
}

// take books a fact: who is late since when, who has caught up.
func (g *group) take(f Fact, now time.Time, asked bool) (caughtUp []string) {
	g.seen, g.nodes, g.proven = true, f.Nodes, f.Witnesses > 0
	if asked {
		for _, id := range sorted(g.fenced) {
			if !f.Behind[id] {
				delete(g.fenced, id)
				caughtUp = append(caughtUp, id)
			}
		}
		maps.DeleteFunc(g.lonely, func(id string, _ bool) bool { return !f.Behind[id] })
	}
	maps.DeleteFunc(g.since, func(id string, _ time.Time) bool { return !f.Late[id] || g.isFenced(id) })
	for id := range f.Late {
		if _, ok := g.since[id]; !ok && !g.isFenced(id) {
			g.since[id] = now
		}
	}
	return caughtUp
}

func (g *group) isFenced(id string) bool { _, ok := g.fenced[id]; return ok }

// fence stops waiting for nodes that were late for the whole bound, and returns
// them.
func (g *group) fence(now time.Time, bound time.Duration) (ids []string) {
	if !g.patient() {
		return nil
	}
	over := now.Sub(g.begun()) >= phaseBounds*bound
	for _, id := range sorted(g.since) {
		if over || now.Sub(g.since[id]) >= bound {
			delete(g.since, id)
			g.fenced[id] = "does not acknowledge " + g.display().String()
			if g.lonely[id] {
				g.fenced[id] = "refuses what all others have"
			}
			ids = append(ids, id)
		}
	}
	return ids
}

// deadline is when the first late node has used its bound up; zero: never.
func (g *group) deadline(bound time.Duration) (at time.Time) {
	if !g.patient() || len(g.since) == 0 {
		return at
	}
	at = g.begun().Add(phaseBounds * bound)
	for _, since := range g.since {
		if end := since.Add(bound); end.Before(at) {
			at = end
		}
	}
	return at
}

// begun is since when the present phase waits for somebody.
func (g *group) begun() time.Time {
	if g.m.phase == Idle && g.held.After(g.entered) {
		return g.held
	}
	return g.entered
}

// pass notes what the gate of the present phase has proven; without a witness
// it is nothing.
func (g *group) pass() {
	types := gates[g.m.phase]
	g.passed = g.passed.With(g.set, types...)
	if g.proven {
		g.acked = g.acked.With(g.set, types...)
	} else {
		g.acked = g.acked.With(resources.Set{}, types...)
	}
}
