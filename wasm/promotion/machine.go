package promotion

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

// module is a generation that is loaded or being built.
type module struct {
	offer      Offer
	phase      lifecycle.Phase
	since      policies.Micros
	loaded     bool // compiled, and therefore to be closed
	step       int  // of the ladder, in canary
	figures    lifecycle.Figures
	faults     int               // in this step of the canary
	faultTimes []policies.Micros // of the last Config.Faults faults while active, oldest first
}

// Machine is the state of one slot. It is not safe for concurrent use.
type Machine struct {
	c      Config
	now    policies.Micros
	barred []lifecycle.Generation // ended for good: not accepted again; latest last

	active, previous, candidate, waiting *module
	building                             lifecycle.Generation // being verified, compiled or warmed; 0 for none
	abandoned                            bool                 // the build in progress is no longer wanted
	abandonedLoaded                      bool                 // and has been compiled

	route   Route
	shadow  lifecycle.Generation
	ended   []lifecycle.Status // latest first
	actions []Action
	closing []lifecycle.Generation // by the Step in progress
}

// New returns a machine whose slot is served by the native policy. The error names
// the bad field.
func New(c Config) (*Machine, error) {
	c, err := c.complete()
	if err != nil {
		return nil, fmt.Errorf("promotion: %w", err)
	}
	return &Machine{c: c}, nil
}

// Step handles an event, appends the actions that follow from it to actions, and
// returns that slice. The error is that of a refused offer, which changes nothing.
func (m *Machine) Step(ev Event, actions []Action) ([]Action, error) {
	m.actions, m.closing = actions, m.closing[:0]
	m.now = max(m.now, ev.Now)
	var err error
	switch ev.Kind {
	case Offered:
		err = m.handleOffer(ev.Offer)
	case Verified, Compiled, Warmed, Failed:
		m.handleBuild(ev)
	case Observed:
		m.handleFigures(ev.Generation, ev.Figures)
	case Faulted:
		m.handleFault(ev.Generation)
	case Withdrawn:
		m.handleWithdrawal(ev.Generation)
	case RolledBack:
		m.handleRollback(ev.Generation, ev.Reason)
	}
	m.promote()
	m.emitChanges()
	actions, m.actions = m.actions, nil
	return actions, err
}

// handleOffer accepts a generation, or changes the goal of one that is present.
func (m *Machine) handleOffer(o Offer) error {
	if err := o.Check(m.c.Kind); err != nil {
		return fmt.Errorf("generation %d: %w", o.Generation, err)
	}
	g := o.Generation
	switch {
	case m.active != nil && m.active.offer.Generation == g:
		return nil // it has reached every goal
	case m.candidate != nil && m.candidate.offer.Generation == g:
		m.changeGoal(m.candidate, o)
		return nil
	case m.waiting != nil && m.waiting.offer.Generation == g:
		m.waiting.offer = o
		return nil
	case m.previous != nil && m.previous.offer.Generation == g:
		return fmt.Errorf("generation %d: is kept for a rollback of generation %d", g, m.active.offer.Generation)
	case slices.Contains(m.barred, g):
		return fmt.Errorf("generation %d: %s: sign the module anew, with a higher generation", g, m.outcome(g))
	}
	next := &module{offer: o, phase: lifecycle.Waiting, since: m.now}
	if m.waiting != nil {
		m.end(m.waiting, lifecycle.Superseded, "")
	}
	m.waiting = next
	// A generation that the fleet runs comes first: without it the slot would stay
	// native until the newest has been promoted.
	if c := m.candidate; c != nil && !(c.offer.Stable && c.offer.Goal == lifecycle.ToActive) {
		m.endCandidate(lifecycle.Superseded, "")
	}
	return nil
}

// changeGoal changes a candidate's goal. A lower one takes it back that far; a
// higher one widens a canary only behind its gate, except for the first step.
func (m *Machine) changeGoal(c *module, o Offer) {
	scope, before := c.offer.Scope, m.share(c)
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

// handleBuild handles the end of a build step.
func (m *Machine) handleBuild(ev Event) {
	if ev.Generation == lifecycle.Native || ev.Generation != m.building {
		return
	}
	if m.abandoned {
		// However far it got, that was its last step.
		if m.abandonedLoaded || ev.Kind == Compiled {
			m.closing = append(m.closing, ev.Generation)
		}
		m.building, m.abandoned, m.abandonedLoaded = lifecycle.Native, false, false
		return
	}
	c := m.candidate
	switch {
	case ev.Kind == Failed:
		m.building = lifecycle.Native
		m.endCandidate(lifecycle.Rejected, ev.Reason)
	case ev.Kind == Verified && c.phase == lifecycle.Verifying:
		m.enter(c, lifecycle.Compiling)
		m.emit(Action{Kind: Compile, Generation: ev.Generation})
	case ev.Kind == Compiled && c.phase == lifecycle.Compiling:
		c.loaded = true
		m.enter(c, lifecycle.Warming)
		m.emit(Action{Kind: Warm, Generation: ev.Generation})
	case ev.Kind == Warmed && c.phase == lifecycle.Warming:
		m.building = lifecycle.Native
		m.enter(c, lifecycle.Warm)
	}
}

// handleFigures replaces the figures of a generation that is being tried.
func (m *Machine) handleFigures(g lifecycle.Generation, f lifecycle.Figures) {
	c := m.candidate
	if c == nil || c.offer.Generation != g || c.phase != lifecycle.Shadow && c.phase != lifecycle.Canary {
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

// handleFault counts a call that a generation did not answer.
func (m *Machine) handleFault(g lifecycle.Generation) {
	if c := m.candidate; c != nil && c.offer.Generation == g && c.phase == lifecycle.Canary {
		if c.faults++; c.faults >= m.c.CanaryFaults {
			m.endCandidate(lifecycle.Rejected, countFaults(uint64(c.faults))+" at "+m.stepName(c))
		}
		return
	}
	a := m.active
	if a == nil || a.offer.Generation != g {
		return // a late call of a generation that is gone
	}
	if len(a.faultTimes) == m.c.Faults {
		a.faultTimes = slices.Delete(a.faultTimes, 0, 1)
	}
	a.faultTimes = append(a.faultTimes, m.now)
	if len(a.faultTimes) == m.c.Faults && m.now-a.faultTimes[0] <= m.c.Window {
		m.endActive(lifecycle.Rejected, fmt.Sprintf("%s within %d ms", countFaults(uint64(m.c.Faults)), (m.now-a.faultTimes[0])/policies.Millisecond))
	}
}

// outcome returns how a generation ended.
func (m *Machine) outcome(g lifecycle.Generation) string {
	for _, s := range m.ended {
		if s.Generation == g && s.Reason != "" {
			return s.Phase.String() + ", " + s.Reason
		} else if s.Generation == g {
			return s.Phase.String()
		}
	}
	return "ended before"
}

func (m *Machine) emit(a Action) { m.actions = append(m.actions, a) }
