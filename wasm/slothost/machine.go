package slothost

import (
	"fmt"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
)

const (
	maxEnded  = 8  // ended generations that Status reports
	maxBarred = 64 // generations that are remembered as ended for good
)

// offer is a candidate of the desired state. until is when it expires: a generation that is
// not stable, and not active by then, is rejected. 0 means never.
type offer struct {
	lifecycle.Candidate
	until policies.Micros
}

// sameGoal reports whether two offers of a generation lead to the same phases.
func (o offer) sameGoal(p offer) bool {
	return o.Goal == p.Goal && o.Permille == p.Permille && o.Scope == p.Scope && o.Stable == p.Stable && o.until == p.until
}

// generation is a module of the slot, from its offer to its end.
type generation struct {
	offer      offer // with the module's bytes until it is built
	phase      lifecycle.Phase
	since      policies.Micros
	step       int // of the ladder, in canary
	figures    lifecycle.Figures
	faults     int               // in this step of the canary
	faultTimes []policies.Micros // of the last Gates.Faults faults while active, oldest first
}

// machine decides the phases of a slot's modules; see the package comment. Each of its
// methods records what happened at the time now; advance then promotes what may be promoted.
// It loads nothing, calls nothing and reads no clock: one sequence of calls gives one sequence
// of states. It is not safe for concurrent use.
type machine struct {
	kind   lifecycle.Kind
	gates  Gates
	now    policies.Micros
	barred []lifecycle.Generation // ended for good: not accepted again; latest last

	active, previous, candidate, waiting *generation
	// building is the generation that is being built, 0 for none. It is not the candidate
	// if its build is not wanted any more.
	building lifecycle.Generation
	ended    []lifecycle.Status // latest first
	changed  bool               // a phase has changed since the last advance
}

func newMachine(k lifecycle.Kind, g Gates) (*machine, error) {
	g, err := g.complete(k)
	return &machine{kind: k, gates: g}, err
}

// advance promotes what may be promoted, and reports whether a phase has changed since the
// last time.
func (m *machine) advance() (changed bool) {
	for m.promoteOnce() {
	}
	changed, m.changed = m.changed, false
	return changed
}

// accept takes an offer that a valid spec has, or changes the goal of a generation that is
// present. The error is why it is refused.
func (m *machine) accept(o offer) error {
	g := o.Generation
	switch {
	case m.active.is(g):
		return nil // it has reached every goal
	case m.candidate.is(g):
		m.changeGoal(m.candidate, o)
		return nil
	case m.waiting.is(g):
		o.Module = m.waiting.offer.Module
		m.waiting.offer = o
		return nil
	case m.previous.is(g):
		return fmt.Errorf("generation %d: is kept for a rollback of generation %d", g, m.active.offer.Generation)
	case slices.Contains(m.barred, g):
		return fmt.Errorf("generation %d: %s: sign the module anew, with a higher generation", g, m.outcome(g))
	}
	if m.waiting != nil {
		m.end(m.waiting, lifecycle.Superseded, "")
	}
	m.waiting = &generation{offer: o, phase: lifecycle.Waiting, since: m.now}
	// A generation that the fleet runs comes first: without it the slot would stay
	// native until the newest has been promoted.
	if m.candidate != nil && !m.candidate.offer.Stable {
		m.endCandidate(lifecycle.Superseded, "")
	}
	return nil
}

// changeGoal changes a candidate's goal. A lower one takes it back that far; a
// higher one widens a canary only behind its gate, except for the first step.
func (m *machine) changeGoal(c *generation, o offer) {
	scope, before := c.offer.Scope, m.share(c)
	o.Module = c.offer.Module
	c.offer = o
	switch {
	case c.phase == lifecycle.Canary && (o.Goal < lifecycle.ToCanary || o.Scope != scope):
		m.enter(c, lifecycle.Warm)
	case c.phase == lifecycle.Canary:
		for c.step > 0 && (m.share(c) > before || m.shareAt(c, c.step-1) == m.maxShare(c)) {
			c.step--
		}
		if m.share(c) != before {
			m.enter(c, lifecycle.Canary)
		}
	case c.phase == lifecycle.Shadow && o.Goal < lifecycle.ToShadow:
		m.enter(c, lifecycle.Warm)
	}
}

// beginBuild returns the candidate that is to be built now, with its module, which the machine forgets.
func (m *machine) beginBuild() (c lifecycle.Candidate, ok bool) {
	if m.building == lifecycle.Native || m.candidate == nil || m.candidate.offer.Module == nil {
		return c, false
	}
	c = m.candidate.offer.Candidate
	m.candidate.offer.Module = nil
	return c, true
}

// continueBuild records the next phase of the build in progress, and reports whether it is
// still wanted.
func (m *machine) continueBuild(p lifecycle.Phase) bool {
	if !m.candidate.is(m.building) {
		return false
	}
	m.enter(m.candidate, p)
	return true
}

// endBuild records the end of the build in progress: why it failed, or "" if the module is
// warm. It reports whether the module is used.
func (m *machine) endBuild(failure string) (used bool) {
	wanted := m.candidate.is(m.building)
	m.building, m.changed = lifecycle.Native, true
	switch {
	case wanted && failure != "":
		m.endCandidate(lifecycle.Rejected, failure)
	case wanted:
		m.enter(m.candidate, lifecycle.Warm)
		return true
	}
	return false
}

// observe replaces the figures of a generation that is being tried.
func (m *machine) observe(g lifecycle.Generation, f lifecycle.Figures) {
	c := m.candidate
	if !c.is(g) || c.phase != lifecycle.Shadow && c.phase != lifecycle.Canary {
		return
	}
	c.figures = f
	if c.phase == lifecycle.Shadow && f.Faults > 0 {
		m.endCandidate(lifecycle.Rejected, countFaults(f.Faults)+" in shadow")
	}
}

// countFaults returns a number of faults as text.
func countFaults(n uint64) string {
	if n == 1 {
		return "1 fault"
	}
	return fmt.Sprintf("%d faults", n)
}

// fault counts a call that a generation did not answer.
func (m *machine) fault(g lifecycle.Generation) {
	if c := m.candidate; c.is(g) && c.phase == lifecycle.Canary {
		if c.faults++; c.faults >= m.gates.CanaryFaults {
			m.endCandidate(lifecycle.Rejected, countFaults(uint64(c.faults))+" at "+m.stepName(c))
		}
		return
	}
	a := m.active
	if !a.is(g) {
		return // a late call of a generation that is gone
	}
	if len(a.faultTimes) == m.gates.Faults {
		a.faultTimes = slices.Delete(a.faultTimes, 0, 1)
	}
	a.faultTimes = append(a.faultTimes, m.now)
	if within := m.now - a.faultTimes[0]; len(a.faultTimes) == m.gates.Faults && within <= m.gates.Window {
		m.endActive(lifecycle.Rejected, fmt.Sprintf("%s within %d ms", countFaults(uint64(m.gates.Faults)), within/policies.Millisecond))
	}
}

// rollBack ends a generation for good, in whatever phase it is.
func (m *machine) rollBack(g lifecycle.Generation, reason string) {
	switch {
	case m.active.is(g):
		m.endActive(lifecycle.RolledBack, reason)
	case m.candidate.is(g):
		m.endCandidate(lifecycle.RolledBack, reason)
	case m.waiting.is(g):
		m.bar(g)
		m.end(m.waiting, lifecycle.RolledBack, reason)
		m.waiting = nil
	case m.previous.is(g): // the slot cannot fall back to it any more
		m.bar(g)
		m.end(m.previous, lifecycle.RolledBack, reason)
		m.previous = nil
	}
}

// withdraw ends a candidate that is no longer wanted. It may be offered again if it has not
// answered a call yet.
func (m *machine) withdraw(g lifecycle.Generation) {
	switch {
	case m.waiting.is(g):
		m.end(m.waiting, lifecycle.Withdrawn, "")
		m.waiting = nil
	case m.candidate.is(g):
		if m.candidate.phase == lifecycle.Canary {
			m.bar(g)
		}
		m.endCandidate(lifecycle.Withdrawn, "")
	}
}

// endActive ends the active generation; the previous one takes over, or the native
// policy.
func (m *machine) endActive(p lifecycle.Phase, reason string) {
	m.bar(m.active.offer.Generation)
	m.end(m.active, p, reason)
	m.active, m.previous = m.previous, nil
	if a := m.active; a != nil {
		a.faultTimes = a.faultTimes[:0]
		a.phase, a.since = lifecycle.Active, m.now
	}
}

// endCandidate ends the candidate. If it is being built, the build is no longer wanted.
func (m *machine) endCandidate(p lifecycle.Phase, reason string) {
	if p == lifecycle.Rejected || p == lifecycle.RolledBack {
		m.bar(m.candidate.offer.Generation)
	}
	m.end(m.candidate, p, reason)
	m.candidate = nil
}

// bar keeps a generation that ended for good from being offered again.
func (m *machine) bar(g lifecycle.Generation) {
	m.barred = append(m.barred, g)
	m.barred = m.barred[max(0, len(m.barred)-maxBarred):]
}

// end records that a generation has ended.
func (m *machine) end(c *generation, p lifecycle.Phase, reason string) {
	s := m.status(c)
	s.Phase, s.SinceUnixMillis, s.Reason, s.Blocked, s.Inconclusive = p, int64(m.now/policies.Millisecond), reason, "", ""
	m.ended = slices.Insert(m.ended, 0, s)
	m.ended = m.ended[:min(len(m.ended), maxEnded)]
	m.changed = true
}

// outcome returns how a generation ended.
func (m *machine) outcome(g lifecycle.Generation) string {
	for _, s := range m.ended {
		if s.Generation == g && s.Reason != "" {
			return s.Phase.String() + ", " + s.Reason
		} else if s.Generation == g {
			return s.Phase.String()
		}
	}
	return "ended before"
}

// is reports whether c is the generation g. No generation is the native policy.
func (c *generation) is(g lifecycle.Generation) bool { return c != nil && c.offer.Generation == g }

// present returns the generations that have not ended.
func (m *machine) present() (all []*generation) {
	for _, c := range []*generation{m.active, m.previous, m.candidate, m.waiting} {
		if c != nil {
			all = append(all, c)
		}
	}
	return all
}

// find returns a generation that has not ended, nil for none.
func (m *machine) find(g lifecycle.Generation) *generation {
	for _, c := range m.present() {
		if c.is(g) {
			return c
		}
	}
	return nil
}

// route returns which generations answer calls: they are warm and have not ended.
func (m *machine) route() (r route) {
	if m.active != nil {
		r.active = m.active.offer.Generation
	}
	if c := m.candidate; c != nil && c.phase == lifecycle.Canary {
		r.candidate, r.permille = c.offer.Generation, m.share(c)
		if !m.kind.PerRequest() {
			r.scope = c.offer.Scope
		}
	}
	return r
}

// shadow returns the generation that answers recorded calls, 0 for none.
func (m *machine) shadow() lifecycle.Generation {
	if c := m.candidate; c != nil && c.phase == lifecycle.Shadow {
		return c.offer.Generation
	}
	return lifecycle.Native
}

// slotStatus returns the state of the slot, with what the machine knows of each generation:
// active, previous, candidate and waiting, as far as they exist, then the ended ones, latest
// first. The result shares no memory with the machine.
func (m *machine) slotStatus() lifecycle.SlotStatus {
	r := m.route()
	s := lifecycle.SlotStatus{Kind: m.kind, Active: r.active, Candidate: r.candidate, Permille: r.permille, Scope: r.scope}
	for _, c := range m.present() {
		s.Modules = append(s.Modules, m.status(c))
	}
	s.Modules = append(s.Modules, m.ended...)
	return s
}

func (m *machine) status(c *generation) lifecycle.Status {
	s := lifecycle.Status{Generation: c.offer.Generation, Phase: c.phase, SinceUnixMillis: int64(c.since / policies.Millisecond),
		Goal: c.offer.Goal, Figures: c.figures}
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
			s.Reason = fmt.Sprintf("has answered none of %d calls at this share", m.gates.Canary.Calls)
		}
	}
	return s
}
