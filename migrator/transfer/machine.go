package transfer

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// Machine is one replica's part in all moves. It is not safe for concurrent use.
type Machine struct {
	c     Config
	now   policies.Micros
	out   []Action  // of the Step in progress
	local []Message // to oneself, of the Step in progress: a front may be source or target

	// Each in order of its beginning, so that equal events give equal actions.
	exports []*export
	imports []*incoming
	commits []*commit

	sold     memory[bidask.Deal, Message] // how exports ended: what their targets are told
	answered memory[bidask.Deal, Message] // how fronts' moves ended: what their sources are told
}

// New returns a machine that moves nothing. The error is a *policies.Violation
// that names the bad field.
func New(c Config) (*Machine, error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	return &Machine{c: c}, nil
}

// Step takes note of an event and appends what is to be done about it to out,
// which it returns. It keeps the slices and the table that the event brings.
func (m *Machine) Step(ev Event, out []Action) []Action {
	m.out = out
	m.now = max(m.now, ev.Now)
	m.sold.forget(m.now)
	m.answered.forget(m.now)
	m.commits = slices.DeleteFunc(m.commits, func(c *commit) bool { return c.fenced && !c.looking && c.heard+m.c.Memory <= m.now })
	switch ev.Kind {
	case Exporting:
		m.exporting(ev)
	case Importing:
		m.importing(ev)
	case Received:
		m.receive(ev.Message)
	case Aborted:
		if ev.Move.Seller == m.c.Self {
			m.exportAborted(ev.Move)
		} else {
			m.importAborted(ev.Move)
		}
	case Tabled, Frozen:
		m.listed(ev)
	case Prepared:
		m.prepared(ev.Move)
	case Filled, Corrupt:
		m.pulled(ev)
	case Broken:
		if ev.Move.Seller == m.c.Self {
			m.exportBroken(ev)
		} else {
			m.importBroken(ev)
		}
	case Adopting:
		m.adopting(ev)
	case Settled, Held:
		m.settled(ev)
	case Gone:
		m.targetGone(ev.Peer)
		m.frontGone(ev.Peer)
		m.importsGone(ev.Peer)
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
	out, m.out = m.out, nil
	return out
}

// receive passes a message to the part that it is meant for.
func (m *Machine) receive(msg Message) {
	if msg.From == "" || msg.To != m.c.Self || msg.Move.Seller == "" {
		return
	}
	switch msg.Kind {
	case Open, Pulled, Pulling, Ready:
		if msg.Move.Seller == m.c.Self {
			m.hearTarget(msg)
		}
	case Offer, Round, Manifest:
		if msg.Move.Seller == msg.From {
			m.hearSource(msg)
		}
	case Swap, Whose:
		if msg.Move.Seller == msg.From {
			m.asked(msg)
		}
	case Back, Ended, Denied:
		if msg.Move.Seller == m.c.Self {
			m.hearFront(msg)
		}
	case Pending, Done: // a front's to a source, or a source's to a target
		if msg.Move.Seller == m.c.Self {
			m.hearFront(msg)
		} else if msg.Move.Seller == msg.From {
			m.hearSource(msg)
		}
	case Abort:
		if msg.Move.Seller == m.c.Self {
			m.hearTarget(msg)
		} else if msg.Move.Seller == msg.From {
			m.hearSource(msg)
		}
	}
}

// Next returns when Step must be called with Ticked; false when no deadline is
// pending. It changes with every Step.
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

// Idle reports whether no move is under way here, in any role.
func (m *Machine) Idle() bool { return len(m.exports)+len(m.imports)+len(m.commits) == 0 }

// send sends a message; one to oneself arrives within the same Step.
func (m *Machine) send(msg Message) {
	msg.From = m.c.Self
	if msg.To == m.c.Self {
		m.local = append(m.local, msg)
		return
	}
	m.out = append(m.out, Action{Kind: Send, Move: msg.Move, Peer: msg.To, Message: msg})
}

func (m *Machine) do(a Action) { m.out = append(m.out, a) }

// due reports whether a deadline has passed; 0 is none.
func (m *Machine) due(t policies.Micros) bool { return t != 0 && t <= m.now }

// without takes v out of s.
func without[T comparable](s []T, v T) []T {
	return slices.DeleteFunc(s, func(o T) bool { return o == v })
}
