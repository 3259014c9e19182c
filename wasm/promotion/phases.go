package promotion

import (
	"fmt"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
)

// promote starts the waiting generation when its place is free, and moves the
// candidate as far as gates and goal allow.
func (m *Machine) promote() {
	for m.promoteOnce() {
	}
}

// promoteOnce makes one transition, and reports whether there was one to make.
func (m *Machine) promoteOnce() bool {
	if w := m.waiting; w != nil && m.expired(w) {
		m.bar(w.offer.Generation)
		m.end(w, lifecycle.Rejected, expiredReason)
		m.waiting = nil
		return true
	}
	c := m.candidate
	if c != nil && m.expired(c) {
		m.endCandidate(lifecycle.Rejected, expiredReason)
		return true
	}
	if c == nil {
		if m.waiting == nil || m.building != lifecycle.Native {
			return false
		}
		c, m.waiting = m.waiting, nil
		m.candidate, m.building = c, c.offer.Generation
		m.enter(c, lifecycle.Verifying)
		m.emit(Action{Kind: Verify, Generation: m.building})
		return true
	}
	switch c.phase {
	case lifecycle.Warm:
		return m.leaveWarm(c)
	case lifecycle.Shadow:
		pass, reason := m.evidence(c).verdict()
		switch {
		case reason != "" && c.offer.Goal >= lifecycle.ToCanary && !c.offer.Stable:
			m.endCandidate(lifecycle.Rejected, "in shadow: "+reason)
			return true
		case pass && c.offer.Goal >= lifecycle.ToCanary || c.offer.Stable && c.offer.Goal > lifecycle.ToShadow:
			m.startCanary(c)
			return true
		}
	case lifecycle.Canary:
		return m.leaveCanaryStep(c)
	}
	return false
}

// expiredReason is why a generation that was not promoted in time is rejected.
const expiredReason = "its statement expired before it was promoted"

// expired reports whether an offer has expired. A stable one does not expire.
func (m *Machine) expired(c *module) bool {
	return c.offer.Until != 0 && m.now >= c.offer.Until && !c.offer.Stable
}

// leaveWarm enters shadow, or the phase in which a stable generation belongs.
func (m *Machine) leaveWarm(c *module) bool {
	switch {
	case c.offer.Goal == lifecycle.ToWarm:
		return false
	case c.offer.Stable && c.offer.Goal == lifecycle.ToActive:
		m.activate(c)
	case c.offer.Stable && c.offer.Goal == lifecycle.ToCanary:
		m.startCanary(c)
	default:
		m.enter(c, lifecycle.Shadow)
	}
	return true
}

// startCanary enters the first step; a stable generation goes to its full share at
// once.
func (m *Machine) startCanary(c *module) {
	c.step = 0
	for c.offer.Stable && m.share(c) < m.maxShare(c) {
		c.step++
	}
	m.enter(c, lifecycle.Canary)
}

// leaveCanaryStep goes on to the next share when the gate allows it.
func (m *Machine) leaveCanaryStep(c *module) bool {
	pass, reason := m.evidence(c).verdict()
	if reason != "" {
		m.endCandidate(lifecycle.Rejected, fmt.Sprintf("at %s: %s", m.stepName(c), reason))
		return true
	}
	last := m.share(c) >= m.maxShare(c)
	switch {
	case c.offer.Goal == lifecycle.ToActive && (last && pass || c.offer.Stable):
		m.activate(c)
	case !last && (pass || c.offer.Stable):
		c.step++
		m.enter(c, lifecycle.Canary)
	default:
		return false
	}
	return true
}

// activate makes the candidate the active generation, and keeps the one before it.
func (m *Machine) activate(c *module) {
	if p := m.previous; p != nil {
		m.end(p, lifecycle.Superseded, "")
		m.closing = append(m.closing, p.offer.Generation)
	}
	m.previous, m.active, m.candidate = m.active, c, nil
	if m.previous != nil {
		m.previous.phase, m.previous.since = lifecycle.Previous, m.now
	}
	m.enter(c, lifecycle.Active)
}

// enter begins a phase, or a step of it.
func (m *Machine) enter(c *module, p lifecycle.Phase) {
	c.phase, c.since, c.figures, c.faults = p, m.now, lifecycle.Figures{}, 0
}

// share returns the candidate's share at its step, in ‰: that of the ladder up to
// what its offer allows, which is the last one. A scope has one step.
func (m *Machine) share(c *module) int { return m.shareAt(c, c.step) }

func (m *Machine) shareAt(c *module, step int) int {
	if !m.c.Kind.PerRequest() {
		return 0
	}
	if step < len(m.c.Ladder) {
		return min(m.c.Ladder[step], m.maxShare(c))
	}
	return m.maxShare(c)
}

// maxShare returns the share of the last step of a canary.
func (m *Machine) maxShare(c *module) int {
	if !m.c.Kind.PerRequest() {
		return 0
	}
	if c.offer.Goal == lifecycle.ToCanary {
		return c.offer.Permille
	}
	if len(m.c.Ladder) == 0 {
		return 1 // even the shortest ladder has one step before all requests
	}
	return m.c.Ladder[len(m.c.Ladder)-1]
}

// stepName names a candidate's step, for reasons.
func (m *Machine) stepName(c *module) string {
	if m.c.Kind.PerRequest() {
		return fmt.Sprintf("%d ‰", m.share(c))
	}
	return fmt.Sprintf("scope %q", c.offer.Scope)
}

// emitChanges derives the route and the generation in shadow from the modules, and
// emits actions for what has changed. Close comes last: a closed generation is not
// routed to any more.
func (m *Machine) emitChanges() {
	var r Route
	shadow := lifecycle.Native
	if m.active != nil {
		r.Active = m.active.offer.Generation
	}
	if c := m.candidate; c != nil {
		switch c.phase {
		case lifecycle.Canary:
			r.Candidate, r.Permille = c.offer.Generation, m.share(c)
			if !m.c.Kind.PerRequest() {
				r.Scope = c.offer.Scope
			}
		case lifecycle.Shadow:
			shadow = c.offer.Generation
		}
	}
	if r != m.route {
		m.route = r
		m.emit(Action{Kind: Switch, Route: r})
	}
	if shadow != m.shadow {
		m.shadow = shadow
		m.emit(Action{Kind: Shadow, Generation: shadow})
	}
	for _, g := range m.closing {
		m.emit(Action{Kind: Close, Generation: g})
	}
}

// Route returns the route in force.
func (m *Machine) Route() Route { return m.route }

// Status returns the state of the slot: of each generation, what the machine knows
// of it. Modules are active, previous, candidate and waiting, as far as they exist,
// then the ended ones, latest first. The result shares no memory with the machine.
func (m *Machine) Status() lifecycle.SlotStatus {
	s := lifecycle.SlotStatus{Kind: m.c.Kind, Active: m.route.Active, Candidate: m.route.Candidate, Permille: m.route.Permille,
		Scope: m.route.Scope}
	for _, c := range []*module{m.active, m.previous, m.candidate, m.waiting} {
		if c != nil {
			s.Modules = append(s.Modules, m.status(c))
		}
	}
	s.Modules = append(s.Modules, slices.Clone(m.ended)...)
	return s
}

func (m *Machine) status(c *module) lifecycle.Status {
	s := lifecycle.Status{Generation: c.offer.Generation, Phase: c.phase, SinceUnixMillis: int64(c.since / policies.Millisecond), Goal: c.offer.Goal, Figures: c.figures}
	if c.phase != lifecycle.Shadow && c.phase != lifecycle.Canary {
		return s
	}
	e := m.evidence(c)
	against, certain := e.against()
	if !certain {
		s.Inconclusive = against
	} else if c.phase == lifecycle.Shadow {
		s.Blocked = against
	}
	if c.phase == lifecycle.Shadow {
		s.Reason = e.missing()
		return s
	}
	s.Permille = m.share(c)
	if c.offer.Goal == lifecycle.ToActive || s.Permille < m.maxShare(c) {
		s.Reason = e.missing()
		if c.figures.Calls == 0 && c.step > 0 {
			s.Reason = fmt.Sprintf("has answered none of %d calls at this share", m.c.Canary.Calls)
		}
	}
	return s
}
