package promotion

import (
	"fmt"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

// life is a generation that is loaded or on its way.
type life struct {
	offer   Offer
	state   State
	since   policies.Micros
	loaded  bool // compiled, and so to be closed
	rung    int  // of the ladder, in canary
	figures Figures
	faults  int               // in this step of the canary
	times   []policies.Micros // of the last Config.Faults faults while active, oldest first
}

// Machine is the life of one slot. It is not safe for concurrent use.
type Machine struct {
	c     Config
	now   policies.Micros
	floor Generation
	spent bool // the generation at the floor ended for good: offering it again is in vain

	active, previous, candidate, waiting *life
	building                             Generation // being verified, compiled or warmed; 0 for none
	orphan                               bool       // what is being built is wanted no more
	loadedOrphan                         bool       // and it is loaded

	route  Route
	shadow Generation
	ended  []Life // latest first
	out    []Action
	close  []Generation // of the Step in progress
}

// New returns a machine whose slot the native policy serves. The error names the
// bad field.
func New(c Config) (*Machine, error) {
	c, err := c.complete()
	if err != nil {
		return nil, fmt.Errorf("slot: %w", err)
	}
	return &Machine{c: c, floor: c.Floor}, nil
}

// Step takes note of an event and appends what is to be done about it to out,
// which it returns. The error is that of an offer which is refused; it changes
// nothing.
func (m *Machine) Step(ev Event, out []Action) ([]Action, error) {
	m.out, m.close = out, m.close[:0]
	m.now = max(m.now, ev.Now)
	var err error
	switch ev.Kind {
	case Offered:
		err = m.offer(ev.Offer)
	case Verified, Compiled, Warmed, Failed:
		m.built(ev)
	case Observed:
		m.observe(ev.Generation, ev.Figures)
	case Faulted:
		m.fault(ev.Generation)
	case Withdrawn:
		m.withdraw(ev.Generation)
	case RolledBack:
		m.rollBack(ev.Generation, ev.Reason)
	}
	m.climb()
	m.settle()
	out, m.out = m.out, nil
	return out, err
}

// offer takes a generation on, or changes the goal of one that is there.
func (m *Machine) offer(o Offer) error {
	if err := o.Check(m.c.Kind); err != nil {
		return fmt.Errorf("generation %d: %w", o.Generation, err)
	}
	g := o.Generation
	switch {
	case m.active != nil && m.active.offer.Generation == g:
		return nil // it is where every goal leads
	case m.candidate != nil && m.candidate.offer.Generation == g:
		m.retarget(m.candidate, o)
		return nil
	case m.waiting != nil && m.waiting.offer.Generation == g:
		m.waiting.offer = o
		return nil
	case g < m.floor && !o.Back && !slices.Contains(m.c.Resume, g):
		return fmt.Errorf("generation %d: older than %d, which was offered before: sign the module anew, with a higher generation", g, m.floor)
	case g == m.floor && m.spent:
		return fmt.Errorf("generation %d: %s: sign the module anew, with a higher generation", g, m.fate(g))
	}
	if g > m.floor {
		m.floor, m.spent = g, false
	}
	next := &life{offer: o, state: Waiting, since: m.now}
	if m.waiting != nil {
		m.end(m.waiting, Superseded, "")
	}
	m.waiting = next
	// A generation that the fleet runs comes first: without it the slot would
	// stay native until the newest has climbed.
	if c := m.candidate; c != nil && !(c.offer.Proven && c.offer.Goal == ToActive) {
		m.drop(c, Superseded, "")
	}
	return nil
}

// Check reports what is wrong with an offer to a slot of a kind as such.
func (o Offer) Check(k abi.Kind) error {
	switch {
	case o.Generation == Native:
		return fmt.Errorf("0 is the native policy's")
	case o.Goal < ToWarm || o.Goal > ToActive:
		return fmt.Errorf("goal %d: name warm, shadow, canary or active", o.Goal)
	case o.Permille < 0 || o.Permille > 999:
		return fmt.Errorf("canary of %d ‰: from 1 to 999", o.Permille)
	case PerRequest(k) && o.Goal == ToCanary && o.Permille == 0:
		return fmt.Errorf("canary of 0 ‰: from 1 to 999")
	case !PerRequest(k) && o.Goal >= ToCanary && o.Scope == "" && !(o.Proven && o.Goal == ToActive):
		return fmt.Errorf("no scope: policies that decide for many requests have their canary in a scope")
	}
	return nil
}

// retarget changes a candidate's goal. A lower one takes it back that far; a
// higher one widens a canary behind its gate only, but for the first step.
func (m *Machine) retarget(c *life, o Offer) {
	scope, before := c.offer.Scope, m.share(c)
	c.offer = o
	switch {
	case c.state == InCanary && (o.Goal < ToCanary || o.Scope != scope):
		m.enter(c, IsWarm)
	case c.state == InCanary:
		for c.rung > 0 && (m.share(c) > before || m.shareAt(c, c.rung-1) == m.limit(c)) {
			c.rung--
		}
		if m.share(c) != before {
			m.enter(c, InCanary)
		}
	case c.state == InShadow && o.Goal < ToShadow:
		m.enter(c, IsWarm)
	}
}

// built takes note of a step of building.
func (m *Machine) built(ev Event) {
	if ev.Generation == Native || ev.Generation != m.building {
		return
	}
	if m.orphan {
		// However far it came, that was its last step.
		if m.loadedOrphan || ev.Kind == Compiled {
			m.close = append(m.close, ev.Generation)
		}
		m.building, m.orphan, m.loadedOrphan = Native, false, false
		return
	}
	c := m.candidate
	switch {
	case ev.Kind == Failed:
		m.building = Native
		m.drop(c, Rejected, ev.Reason)
	case ev.Kind == Verified && c.state == Verifying:
		m.enter(c, Compiling)
		m.do(Action{Kind: Compile, Generation: ev.Generation})
	case ev.Kind == Compiled && c.state == Compiling:
		c.loaded = true
		m.enter(c, Warming)
		m.do(Action{Kind: Warm, Generation: ev.Generation})
	case ev.Kind == Warmed && c.state == Warming:
		m.building = Native
		m.enter(c, IsWarm)
	}
}

func (m *Machine) observe(g Generation, f Figures) {
	c := m.candidate
	if c == nil || c.offer.Generation != g || c.state != InShadow && c.state != InCanary {
		return
	}
	c.figures = f
	if c.state == InShadow && f.Faults > 0 {
		m.drop(c, Rejected, faults(f.Faults)+" in shadow")
	}
}

// faults is a count of them in words.
func faults(n uint64) string {
	if n == 1 {
		return "1 fault"
	}
	return fmt.Sprintf("%d faults", n)
}

// fault counts a call that a generation did not answer.
func (m *Machine) fault(g Generation) {
	if c := m.candidate; c != nil && c.offer.Generation == g && c.state == InCanary {
		if c.faults++; c.faults >= m.c.CanaryFaults {
			m.drop(c, Rejected, faults(uint64(c.faults))+" at "+m.stage(c))
		}
		return
	}
	a := m.active
	if a == nil || a.offer.Generation != g {
		return // a late call of one that is gone
	}
	if len(a.times) == m.c.Faults {
		a.times = slices.Delete(a.times, 0, 1)
	}
	a.times = append(a.times, m.now)
	if len(a.times) == m.c.Faults && m.now-a.times[0] <= m.c.Window {
		m.fallBack(Rejected, fmt.Sprintf("%s within %d ms", faults(uint64(m.c.Faults)), (m.now-a.times[0])/policies.Millisecond))
	}
}

// withdraw gives a candidate up that nobody wants. It may be offered again if it
// has answered no call yet.
func (m *Machine) withdraw(g Generation) {
	switch {
	case g == Native:
	case m.waiting != nil && m.waiting.offer.Generation == g:
		m.end(m.waiting, Gone, "")
		m.waiting = nil
	case m.candidate != nil && m.candidate.offer.Generation == g:
		m.spend(g, m.candidate.state == InCanary)
		m.drop(m.candidate, Gone, "")
	}
}

func (m *Machine) rollBack(g Generation, reason string) {
	switch {
	case g == Native:
	case m.active != nil && m.active.offer.Generation == g:
		m.fallBack(RolledBackOut, reason)
	case m.candidate != nil && m.candidate.offer.Generation == g:
		m.spend(g, true)
		m.drop(m.candidate, RolledBackOut, reason)
	case m.waiting != nil && m.waiting.offer.Generation == g:
		m.spend(g, true)
		m.end(m.waiting, RolledBackOut, reason)
		m.waiting = nil
	case m.previous != nil && m.previous.offer.Generation == g: // nothing falls back to it any more
		m.spend(g, true)
		m.end(m.previous, RolledBackOut, reason)
		m.close = append(m.close, g)
		m.previous = nil
	}
}

// fallBack ends the active generation; the previous one takes over, or the
// native policy.
func (m *Machine) fallBack(s State, reason string) {
	g := m.active.offer.Generation
	m.spend(g, true)
	m.end(m.active, s, reason)
	m.close = append(m.close, g)
	m.active, m.previous = m.previous, nil
	if m.active != nil {
		m.active.times = m.active.times[:0]
		m.active.state, m.active.since = IsActive, m.now
	}
}

// drop ends the candidate.
func (m *Machine) drop(c *life, s State, reason string) {
	g := c.offer.Generation
	m.spend(g, s == Rejected)
	m.end(c, s, reason)
	m.candidate = nil
	if m.building == g {
		m.orphan, m.loadedOrphan = true, c.loaded
		m.do(Action{Kind: Cancel, Generation: g})
		return
	}
	if c.loaded {
		m.close = append(m.close, g)
	}
}

// spend keeps a generation from being offered again. Those below the floor
// cannot be anyhow, but for the one to resume.
func (m *Machine) spend(g Generation, forGood bool) {
	if forGood && g == m.floor {
		m.spent = true
	}
	if forGood {
		m.c.Resume = slices.DeleteFunc(m.c.Resume, func(r Generation) bool { return r == g })
	}
}

func (m *Machine) end(c *life, s State, reason string) {
	l := c.tell(m)
	l.State, l.Since, l.Reason, l.Held, l.Doubt = s, m.now, reason, "", ""
	m.ended = slices.Insert(m.ended, 0, l)
	m.ended = m.ended[:min(len(m.ended), remembered)]
}

func (m *Machine) fate(g Generation) string {
	for _, l := range m.ended {
		if l.Generation == g && l.Reason != "" {
			return l.State.String() + ", " + l.Reason
		} else if l.Generation == g {
			return l.State.String()
		}
	}
	return "ended before"
}

func (m *Machine) do(a Action) { m.out = append(m.out, a) }
