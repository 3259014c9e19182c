package move

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// Machine is one replica's part in all migrations. It is not safe for concurrent use.
type Machine struct {
	cfg   Limits
	now   policies.Micros
	out   []Action  // of the Step in progress
	local []Message // messages to this replica in the Step in progress: a front end may be source or target

	// Each in order of start, so that equal events give equal actions.
	exports []*exportState
	imports []*importState
	commits []*commitRequest

	exportResults results // of finished exports, for their targets
	commitResults results // of finished switches at this front end, for their sources
}

// newMachine returns a machine without migrations.
func newMachine(c Limits) *Machine { return &Machine{cfg: c.withDefaults()} }

// Step handles an event and returns the resulting actions. It keeps the slices and the table
// of the event.
func (m *Machine) Step(ev Event) []Action {
	m.now = max(m.now, ev.Now)
	m.exportResults.expire(m.now)
	m.commitResults.expire(m.now)
	m.commits = slices.DeleteFunc(m.commits, func(c *commitRequest) bool {
		return c.commitRefused && !c.lookingUp && c.heardAt+resultRetention <= m.now
	})
	switch ev.Kind {
	case ExportStarted:
		m.beginExport(ev)
	case ImportStarted:
		m.beginImport(ev)
	case Received:
		m.receive(ev.Message)
	case AbortRequested:
		if ev.Deal.Seller == m.cfg.Self {
			m.abortExport(ev.Deal)
		} else {
			m.handleImportAbort(ev.Deal)
		}
	case Listed, Frozen:
		m.handleTable(ev)
	case Prepared:
		m.handlePrepared(ev.Deal)
	case Verified:
		m.handleVerified(ev)
	case ActionFailed:
		if ev.Deal.Seller == m.cfg.Self {
			m.handleExportFailure(ev)
		} else {
			m.handleImportFailure(ev)
		}
	case AdoptRequested:
		m.handleAdoptRequest(ev)
	case SwitchResult, HolderResult:
		m.handleResult(ev)
	case Gone:
		m.failExportsTo(ev.Peer)
		m.failExportsOfFrontEnd(ev.Peer)
		m.failImportsOf(ev.Peer)
	case Ticked:
		m.tickExports()
		m.tickImports()
	}
	for len(m.local) > 0 {
		msg := m.local[0]
		m.local = m.local[1:]
		m.receive(msg)
	}
	m.local = nil
	out := m.out
	m.out = nil
	return out
}

// receive passes a message to the handler of its role.
func (m *Machine) receive(msg Message) {
	switch msg.Kind {
	case Open, Pulled, Pulling, Ready:
		if msg.Deal.Seller == m.cfg.Self {
			m.handleTargetMessage(msg)
		}
	case Accept, Round, Manifest:
		if msg.Deal.Seller == msg.From {
			m.handleSourceMessage(msg)
		}
	case Commit, Query:
		if msg.Deal.Seller == msg.From {
			m.handleCommit(msg)
		}
	case Reverted, Ended, Rejected:
		if msg.Deal.Seller == m.cfg.Self {
			m.handleFrontEndMessage(msg)
		}
	case Pending, Committed: // from a front end to a source, or from a source to a target
		if msg.Deal.Seller == m.cfg.Self {
			m.handleFrontEndMessage(msg)
		} else if msg.Deal.Seller == msg.From {
			m.handleSourceMessage(msg)
		}
	case Abort:
		if msg.Deal.Seller == m.cfg.Self {
			m.handleTargetMessage(msg)
		} else if msg.Deal.Seller == msg.From {
			m.handleSourceMessage(msg)
		}
	}
}

// Next returns the time at which Step must be called with Ticked, or false when no
// deadline is pending. It changes with every Step.
func (m *Machine) Next() (policies.Micros, bool) {
	next, any := policies.Micros(0), false
	earlier := func(t policies.Micros) {
		if t != 0 && (!any || t < next) {
			next, any = t, true
		}
	}
	for _, x := range m.exports {
		earlier(x.deadline)
		earlier(x.retry)
	}
	for _, i := range m.imports {
		earlier(i.deadline)
		earlier(i.retry)
	}
	return next, any
}

// send sends a message. A message to this replica is handled within the same Step.
func (m *Machine) send(msg Message) {
	msg.From = m.cfg.Self
	if msg.To == m.cfg.Self {
		m.local = append(m.local, msg)
		return
	}
	m.out = append(m.out, Action{Kind: Send, Deal: msg.Deal, Peer: msg.To, Message: msg})
}

func (m *Machine) emit(a Action) { m.out = append(m.out, a) }

// due reports whether deadline t has passed; 0 means no deadline.
func (m *Machine) due(t policies.Micros) bool { return t != 0 && t <= m.now }

// without removes v from s.
func without[T comparable](s []T, v T) []T {
	return slices.DeleteFunc(s, func(o T) bool { return o == v })
}
