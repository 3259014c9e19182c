package promotion

import (
	"fmt"
	"slices"
)

// climb lets the waiting generation begin when its place is free, and the
// candidate go as far as gates and goal let it.
func (m *Machine) climb() {
	for m.step() {
	}
}

// step makes one step up, and reports whether there was one to make.
func (m *Machine) step() bool {
	if w := m.waiting; w != nil && m.late(w) {
		m.spend(w.offer.Generation, true)
		m.end(w, Rejected, expired)
		m.waiting = nil
		return true
	}
	c := m.candidate
	if c != nil && m.late(c) {
		m.drop(c, Rejected, expired)
		return true
	}
	if c == nil {
		if m.waiting == nil || m.building != Native {
			return false
		}
		c, m.waiting = m.waiting, nil
		m.candidate, m.building = c, c.offer.Generation
		m.enter(c, Verifying)
		m.do(Action{Kind: Verify, Generation: m.building})
		return true
	}
	switch c.state {
	case IsWarm:
		return m.leaveWarm(c)
	case InShadow:
		pass, reason := m.stand(c).verdict()
		switch {
		case reason != "" && c.offer.Goal >= ToCanary && !c.offer.Proven:
			m.drop(c, Rejected, "in shadow: "+reason)
			return true
		case pass && c.offer.Goal >= ToCanary || c.offer.Proven && c.offer.Goal > ToShadow:
			m.startCanary(c)
			return true
		}
	case InCanary:
		return m.leaveRung(c)
	}
	return false
}

// expired is why what was not promoted in time is rejected.
const expired = "its statement expired before it was promoted"

// late reports whether an offer has ended. What the fleet runs does not.
func (m *Machine) late(c *life) bool {
	return c.offer.Until != 0 && m.now >= c.offer.Until && !c.offer.Proven
}

// leaveWarm goes into shadow, or where a proven generation belongs.
func (m *Machine) leaveWarm(c *life) bool {
	switch {
	case c.offer.Goal == ToWarm:
		return false
	case c.offer.Proven && c.offer.Goal == ToActive:
		m.promote(c)
	case c.offer.Proven && c.offer.Goal == ToCanary:
		m.startCanary(c)
	default:
		m.enter(c, InShadow)
	}
	return true
}

// startCanary enters the first step; a proven generation goes to its share at
// once.
func (m *Machine) startCanary(c *life) {
	c.rung = 0
	for c.offer.Proven && m.share(c) < m.limit(c) {
		c.rung++
	}
	m.enter(c, InCanary)
}

// leaveRung goes one share up when the gate lets it.
func (m *Machine) leaveRung(c *life) bool {
	pass, reason := m.stand(c).verdict()
	if reason != "" {
		m.drop(c, Rejected, fmt.Sprintf("at %s: %s", m.stage(c), reason))
		return true
	}
	top := m.share(c) >= m.limit(c) // as far as a canary goes
	switch {
	case c.offer.Goal == ToActive && (top && pass || c.offer.Proven):
		m.promote(c)
	case !top && (pass || c.offer.Proven):
		c.rung++
		m.enter(c, InCanary)
	default:
		return false
	}
	return true
}

// promote makes the candidate the active generation, and keeps the one before.
func (m *Machine) promote(c *life) {
	if p := m.previous; p != nil {
		m.end(p, Superseded, "")
		m.close = append(m.close, p.offer.Generation)
	}
	m.previous, m.active, m.candidate = m.active, c, nil
	if m.previous != nil {
		m.previous.state, m.previous.since = IsPrevious, m.now
	}
	m.enter(c, IsActive)
}

// enter begins a stage, or a step of it.
func (m *Machine) enter(c *life, s State) {
	c.state, c.since, c.figures, c.faults = s, m.now, Figures{}, 0
}

// share is the candidate's share at its rung, in ‰: the ladder up to what its
// offer allows, and that at last. A scope is one rung.
func (m *Machine) share(c *life) int { return m.shareAt(c, c.rung) }

func (m *Machine) shareAt(c *life, rung int) int {
	if !PerRequest(m.c.Kind) {
		return 0
	}
	if rung < len(m.c.Ladder) {
		return min(m.c.Ladder[rung], m.limit(c))
	}
	return m.limit(c)
}

// limit is the share that a canary ends with.
func (m *Machine) limit(c *life) int {
	if !PerRequest(m.c.Kind) {
		return 0
	}
	if c.offer.Goal == ToCanary {
		return c.offer.Permille
	}
	if len(m.c.Ladder) == 0 {
		return 1 // the shortest way to everybody still passes by somebody
	}
	return m.c.Ladder[len(m.c.Ladder)-1]
}

// stage names a candidate's step, for reasons.
func (m *Machine) stage(c *life) string {
	if PerRequest(m.c.Kind) {
		return fmt.Sprintf("%d ‰", m.share(c))
	}
	return fmt.Sprintf("scope %q", c.offer.Scope)
}

// settle derives route and shadow from the lives, and says what of it is new.
// Closing comes last: nothing that is closed is routed to.
func (m *Machine) settle() {
	var r Route
	shadow := Native
	if m.active != nil {
		r.Active = m.active.offer.Generation
	}
	if c := m.candidate; c != nil {
		switch c.state {
		case InCanary:
			r.Candidate, r.Permille = c.offer.Generation, m.share(c)
			if !PerRequest(m.c.Kind) {
				r.Scope = c.offer.Scope
			}
		case InShadow:
			shadow = c.offer.Generation
		}
	}
	if r != m.route {
		m.route = r
		m.do(Action{Kind: Switch, Route: r})
	}
	if shadow != m.shadow {
		m.shadow = shadow
		m.do(Action{Kind: Shadow, Generation: shadow})
	}
	for _, g := range m.close {
		m.do(Action{Kind: Close, Generation: g})
	}
}

// Route returns the route in force.
func (m *Machine) Route() Route { return m.route }

// Status tells of the slot. It shares no memory with the machine.
func (m *Machine) Status() Status {
	s := Status{Route: m.route, Floor: m.floor}
	for _, c := range []*life{m.active, m.previous, m.candidate, m.waiting} {
		if c != nil {
			s.Lives = append(s.Lives, c.tell(m))
		}
	}
	s.Lives = append(s.Lives, slices.Clone(m.ended)...)
	return s
}

func (c *life) tell(m *Machine) Life {
	l := Life{Generation: c.offer.Generation, State: c.state, Since: c.since, Goal: c.offer.Goal, Figures: c.figures}
	if c.state != InShadow && c.state != InCanary {
		return l
	}
	stand := m.stand(c)
	against, sure := stand.against()
	if !sure {
		l.Doubt = against
	} else if c.state == InShadow {
		l.Held = against
	}
	if c.state == InShadow {
		l.Reason = stand.missing()
		return l
	}
	l.Permille = m.share(c)
	if c.offer.Goal == ToActive || l.Permille < m.limit(c) {
		l.Reason = stand.missing()
		if c.figures.Calls == 0 && c.rung > 0 {
			l.Reason = fmt.Sprintf("has answered none of %d calls at this share", m.c.Canary.Calls)
		}
	}
	return l
}
