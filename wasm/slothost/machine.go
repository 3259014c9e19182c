package slothost

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/internal/cleantext"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

const (
	maxEnded  = 8  // ended generations that Status reports
	maxBarred = 64 // generations that are remembered as ended for good
)

// offer is a candidate of the desired state, with its verified statement. It has the module's
// bytes from when they are known until they are to be built.
type offer struct {
	lifecycle.Candidate
	statement sign.Statement
}

// expired reports whether the statement of an offer has expired: a generation that is not
// stable, and not active by then, is rejected.
func (o *offer) expired(now policies.Micros) bool {
	end := o.statement.NotAfter
	return end != 0 && now >= policies.Micros(end+1)*policies.Second && !o.Stable
}

// generation is a module of the slot, from the beginning of its build to its end.
type generation struct {
	offer      offer // with the module's bytes until its build begins
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
	barred []lifecycle.Generation // ended for good: not built again; latest last

	wanted                      []offer // by the desired state, in ascending generation
	active, previous, candidate *generation
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

// want makes the offers of a valid spec, in ascending generation, what the slot should run. It
// ends a candidate that is not among them; it may come back if it has not answered a call yet.
// The error names those that ended for good, unless they show that themselves.
func (m *machine) want(all []offer) error {
	before := m.wanted
	m.wanted, m.changed = all, true
	var refused error
	for i := range all {
		o := &all[i]
		g := o.Generation
		switch {
		case m.candidate.is(g):
			m.changeGoal(m.candidate, *o)
		case m.find(g) == nil && !m.isBarred(g):
			if j := indexOf(before, g); j >= 0 && o.Module == nil {
				o.Module = before[j].Module
			}
			continue // it is built, or fetched before
		case m.isBarred(g) && m.outcome(g).Phase != lifecycle.Rejected:
			refused = errors.Join(refused, fmt.Errorf("generation %d: %s: sign the module anew, with a higher generation", g, m.outcomeText(g)))
		}
		o.Module = nil
	}
	if c := m.candidate; c != nil && indexOf(all, c.offer.Generation) < 0 {
		if c.phase == lifecycle.Canary {
			m.bar(c.offer.Generation)
		}
		m.endCandidate(lifecycle.Withdrawn, "")
	}
	return refused
}

// indexOf returns the index of a generation's offer, −1 if there is none.
func indexOf(all []offer, g lifecycle.Generation) int {
	return slices.IndexFunc(all, func(o offer) bool { return o.Generation == g })
}

// provide gives the wanted generations that lack the module with a digest its bytes.
func (m *machine) provide(digest lifecycle.Digest, module []byte) {
	for _, o := range m.pending() {
		if o.Module == nil && o.statement.Digest == digest {
			o.Module, m.changed = module, true
		}
	}
}

// pending returns the wanted generations that are still to be built: those with their bytes
// wait, those without are fetched.
func (m *machine) pending() (all []*offer) {
	for i := range m.wanted {
		if o := &m.wanted[i]; m.find(o.Generation) == nil && !m.isBarred(o.Generation) {
			all = append(all, o)
		}
	}
	return all
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

// beginBuild returns the candidate that is to be built now, with its module, which the machine
// forgets.
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

// observe replaces the figures of a generation that is being tried. why is the last fault in
// shadow, "" for none.
func (m *machine) observe(g lifecycle.Generation, f lifecycle.Figures, why string) {
	c := m.candidate
	if !c.is(g) || c.phase != lifecycle.Shadow && c.phase != lifecycle.Canary {
		return
	}
	c.figures = f
	if c.phase == lifecycle.Shadow && f.Faults > 0 {
		m.endCandidate(lifecycle.Rejected, faultReason(f.Faults, "in shadow", why))
	}
}

// faultReason says how many faults ended a generation, where, and why the last one happened.
func faultReason(n uint64, where, why string) string {
	noun := "faults"
	if n == 1 {
		noun = "fault"
	}
	return strings.TrimSuffix(fmt.Sprintf("%d %s %s: %s", n, noun, where, why), ": ")
}

// fault counts a call that a generation did not answer, and ends it if that is the last one
// that is tolerated.
func (m *machine) fault(g lifecycle.Generation, why string) {
	if c := m.candidate; c.is(g) && c.phase == lifecycle.Canary {
		if c.faults++; c.faults >= m.gates.CanaryFaults {
			m.endCandidate(lifecycle.Rejected, faultReason(uint64(c.faults), "at "+m.stepName(c), why))
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
		m.endActive(lifecycle.Rejected, faultReason(uint64(m.gates.Faults), fmt.Sprintf("within %d ms", within/policies.Millisecond), why))
	}
}

// rollBack ends a generation for good, in whatever phase it is.
func (m *machine) rollBack(g lifecycle.Generation, reason string) {
	switch {
	case m.active.is(g):
		m.endActive(lifecycle.RolledBack, reason)
	case m.candidate.is(g):
		m.endCandidate(lifecycle.RolledBack, reason)
	case m.previous.is(g): // the slot cannot fall back to it any more
		m.bar(g)
		m.end(m.previous, lifecycle.RolledBack, reason)
		m.previous = nil
	default:
		m.endPending(g, lifecycle.RolledBack, reason)
	}
}

// endPending ends a wanted generation for good that is still to be built.
func (m *machine) endPending(g lifecycle.Generation, p lifecycle.Phase, reason string) {
	for _, o := range m.pending() {
		if o.Generation == g {
			o.Module = nil
			m.bar(g)
			m.end(&generation{offer: *o}, p, reason)
			return
		}
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

// bar keeps a generation that ended for good from being built again.
func (m *machine) bar(g lifecycle.Generation) {
	m.barred = append(m.barred, g)
	m.barred = m.barred[max(0, len(m.barred)-maxBarred):]
}

func (m *machine) isBarred(g lifecycle.Generation) bool { return slices.Contains(m.barred, g) }

// end records that a generation has ended.
func (m *machine) end(c *generation, p lifecycle.Phase, reason string) {
	s := m.status(c)
	s.Phase, s.SinceUnixMillis, s.Blocked, s.Inconclusive = p, int64(m.now/policies.Millisecond), "", ""
	s.Reason = cleantext.Truncate(reason, maxReason)
	m.ended = slices.Insert(m.ended, 0, s)
	m.ended = m.ended[:min(len(m.ended), maxEnded)]
	m.changed = true
}

// outcome returns how a generation ended, the zero Status if that is forgotten.
func (m *machine) outcome(g lifecycle.Generation) lifecycle.Status {
	s, _ := lifecycle.SlotStatus{Modules: m.ended}.Module(g)
	return s
}

func (m *machine) outcomeText(g lifecycle.Generation) string {
	s := m.outcome(g)
	return cmp.Or(strings.TrimSuffix(s.Phase.String()+", "+s.Reason, ", "), "ended before")
}

// is reports whether c is the generation g. No generation is the native policy.
func (c *generation) is(g lifecycle.Generation) bool { return c != nil && c.offer.Generation == g }

// present returns the generations that have not ended.
func (m *machine) present() (all []*generation) {
	for _, c := range []*generation{m.active, m.previous, m.candidate} {
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
// active, previous and candidate, as far as they exist, those that wait or are being fetched,
// then the ended ones, latest first. Each is listed once. The result shares no memory with the
// machine.
func (m *machine) slotStatus() lifecycle.SlotStatus {
	r := m.route()
	s := lifecycle.SlotStatus{Kind: m.kind, Active: r.active, Candidate: r.candidate, Permille: r.permille, Scope: r.scope}
	for _, c := range m.present() {
		s.Modules = append(s.Modules, m.status(c))
	}
	for _, o := range m.pending() {
		c := &generation{offer: *o, phase: lifecycle.Waiting}
		if o.Module == nil {
			c.phase = lifecycle.Fetching
		}
		s.Modules = append(s.Modules, m.status(c))
	}
	for _, e := range m.ended {
		if _, again := s.Module(e.Generation); !again {
			s.Modules = append(s.Modules, e)
		}
	}
	return s
}

func (m *machine) status(c *generation) lifecycle.Status {
	st := &c.offer.statement
	s := lifecycle.Status{Generation: c.offer.Generation, Phase: c.phase, SinceUnixMillis: int64(c.since / policies.Millisecond),
		Goal: c.offer.Goal, Figures: c.figures, Name: st.Name, Version: st.Version, SHA256: st.Digest, NotAfterUnixMillis: st.NotAfter * 1000}
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
