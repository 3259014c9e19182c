package promotion

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
)

// Module rollback on a host; of the whole fleet: xds/policyslots/rollback.go. The faults
// that cause it are counted in machine.go.

// handleRollback ends a generation for good, in whatever phase it is.
func (m *Machine) handleRollback(g lifecycle.Generation, reason string) {
	switch {
	case g == lifecycle.Native:
	case m.active != nil && m.active.offer.Generation == g:
		m.endActive(lifecycle.RolledBack, reason)
	case m.candidate != nil && m.candidate.offer.Generation == g:
		m.endCandidate(lifecycle.RolledBack, reason)
	case m.waiting != nil && m.waiting.offer.Generation == g:
		m.bar(g)
		m.end(m.waiting, lifecycle.RolledBack, reason)
		m.waiting = nil
	case m.previous != nil && m.previous.offer.Generation == g: // the slot cannot fall back to it any more
		m.bar(g)
		m.end(m.previous, lifecycle.RolledBack, reason)
		m.closing = append(m.closing, g)
		m.previous = nil
	}
}

// handleWithdrawal ends a candidate that is no longer wanted. It may be offered
// again if it has not answered a call yet.
func (m *Machine) handleWithdrawal(g lifecycle.Generation) {
	switch {
	case g == lifecycle.Native:
	case m.waiting != nil && m.waiting.offer.Generation == g:
		m.end(m.waiting, lifecycle.Withdrawn, "")
		m.waiting = nil
	case m.candidate != nil && m.candidate.offer.Generation == g:
		if m.candidate.phase == lifecycle.Canary {
			m.bar(g)
		}
		m.endCandidate(lifecycle.Withdrawn, "")
	}
}

// endActive ends the active generation; the previous one takes over, or the native
// policy.
func (m *Machine) endActive(p lifecycle.Phase, reason string) {
	g := m.active.offer.Generation
	m.bar(g)
	m.end(m.active, p, reason)
	m.closing = append(m.closing, g)
	m.active, m.previous = m.previous, nil
	if m.active != nil {
		m.active.faultTimes = m.active.faultTimes[:0]
		m.active.phase, m.active.since = lifecycle.Active, m.now
	}
}

// endCandidate ends the candidate, and abandons its build if there is one.
func (m *Machine) endCandidate(p lifecycle.Phase, reason string) {
	c := m.candidate
	g := c.offer.Generation
	if p == lifecycle.Rejected || p == lifecycle.RolledBack {
		m.bar(g)
	}
	m.end(c, p, reason)
	m.candidate = nil
	if m.building == g {
		m.abandoned, m.abandonedLoaded = true, c.loaded
		m.emit(Action{Kind: Cancel, Generation: g})
		return
	}
	if c.loaded {
		m.closing = append(m.closing, g)
	}
}

// bar keeps a generation that ended for good from being offered again.
func (m *Machine) bar(g lifecycle.Generation) {
	m.barred = append(m.barred, g)
	m.barred = m.barred[max(0, len(m.barred)-maxBarred):]
}

// end records that a generation has ended.
func (m *Machine) end(c *module, p lifecycle.Phase, reason string) {
	s := m.status(c)
	s.Phase, s.SinceUnixMillis, s.Reason, s.Blocked, s.Inconclusive = p, int64(m.now/policies.Millisecond), reason, "", ""
	m.ended = slices.Insert(m.ended, 0, s)
	m.ended = m.ended[:min(len(m.ended), maxEnded)]
}
