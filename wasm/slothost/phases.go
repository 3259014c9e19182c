package slothost

import (
	"fmt"
	"slices"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
)

// promoteOnce begins the build of a wanted generation when its place is free, or moves the
// candidate as far as gates and goal allow. It reports whether it made a transition.
func (m *machine) promoteOnce() bool {
	if m.activeIsUnwanted() {
		m.endActive(lifecycle.RolledBack, "not part of the desired state any more")
		return true
	}
	var next *offer
	for _, o := range m.pending() {
		if o.expired(m.now) {
			m.endPending(o.Generation, lifecycle.Rejected, expiredReason)
			return true
		}
		if next == nil && o.Module != nil {
			next = o
		}
	}
	c := m.candidate
	switch {
	case c == nil && (next == nil || m.building != lifecycle.Native):
		return false
	case c == nil:
		m.candidate, m.building = &generation{offer: *next}, next.Generation
		next.Module = nil
		m.enter(m.candidate, lifecycle.Verifying)
		return true
	case next != nil && next.Stable && !c.offer.Stable:
		// A generation that the fleet runs comes first: without it the slot would stay
		// native until the newest has been promoted.
		m.endCandidate(lifecycle.Superseded, "")
		return true
	}
	switch {
	case c.offer.expired(m.now):
		m.endCandidate(lifecycle.Rejected, expiredReason)
	case c.phase < lifecycle.Warm:
		return false
	case c.offer.Stable:
		m.activate(c)
	case c.phase == lifecycle.Warm && c.offer.Goal > lifecycle.ToWarm:
		m.enter(c, lifecycle.Shadow)
	case c.phase == lifecycle.Shadow && c.offer.Goal >= lifecycle.ToCanary:
		return m.leaveShadow(c)
	case c.phase == lifecycle.Canary:
		return m.leaveCanaryStep(c)
	default:
		return false
	}
	return true
}

// expiredReason is why a generation that was not promoted in time is rejected.
const expiredReason = "its statement expired before it was promoted"

// activeIsUnwanted reports whether the active generation is not wanted. It is while a newer
// one is stable: that one will take over, or has failed here, and then the active one is what
// the host fell back to.
func (m *machine) activeIsUnwanted() bool {
	if m.active == nil {
		return false
	}
	g := m.active.offer.Generation
	return !slices.ContainsFunc(m.wanted, func(o offer) bool { return o.Generation == g || o.Stable && o.Generation > g })
}

// leaveShadow enters the first step of the canary when the gate allows it.
func (m *machine) leaveShadow(c *generation) bool {
	switch pass, reason := m.evidence(c).verdict(); {
	case reason != "":
		m.endCandidate(lifecycle.Rejected, "in shadow: "+reason)
	case pass:
		c.step = 0
		m.enter(c, lifecycle.Canary)
	default:
		return false
	}
	return true
}

// leaveCanaryStep goes on to the next share, or to all calls, when the gate allows it.
func (m *machine) leaveCanaryStep(c *generation) bool {
	pass, reason := m.evidence(c).verdict()
	last := m.share(c) >= m.maxShare(c)
	switch {
	case reason != "":
		m.endCandidate(lifecycle.Rejected, fmt.Sprintf("at %s: %s", m.stepName(c), reason))
	case pass && !last:
		c.step++
		m.enter(c, lifecycle.Canary)
	case pass && c.offer.Goal == lifecycle.ToActive:
		m.activate(c)
	default:
		return false
	}
	return true
}

// activate makes the candidate the active generation, and keeps the one before it.
func (m *machine) activate(c *generation) {
	if m.previous != nil {
		m.end(m.previous, lifecycle.Superseded, "")
	}
	m.previous, m.active, m.candidate = m.active, c, nil
	if m.previous != nil {
		m.previous.phase, m.previous.since = lifecycle.Previous, m.now
	}
	m.enter(c, lifecycle.Active)
}

// enter begins a phase, or a step of it.
func (m *machine) enter(c *generation, p lifecycle.Phase) {
	c.phase, c.since, c.figures, c.faults = p, m.now, lifecycle.Figures{}, 0
	m.changed = true
}

// share returns the candidate's share at its step, in ‰: that of the ladder up to
// what its offer allows, which is the last one. A scope has one step.
func (m *machine) share(c *generation) int { return m.shareAt(c, c.step) }

func (m *machine) shareAt(c *generation, step int) int {
	if m.kind.PerRequest() && step < len(m.gates.Ladder) {
		return min(m.gates.Ladder[step], m.maxShare(c))
	}
	return m.maxShare(c)
}

// maxShare returns the share of the last step of a canary.
func (m *machine) maxShare(c *generation) int {
	switch n := len(m.gates.Ladder); {
	case !m.kind.PerRequest():
		return 0
	case c.offer.Goal == lifecycle.ToCanary:
		return c.offer.Permille
	case n > 0:
		return m.gates.Ladder[n-1]
	}
	return 1 // even the shortest ladder has one step before all requests
}

// stepName names a candidate's step, for reasons.
func (m *machine) stepName(c *generation) string {
	if m.kind.PerRequest() {
		return fmt.Sprintf("%d ‰", m.share(c))
	}
	return fmt.Sprintf("scope %q", c.offer.Scope)
}
