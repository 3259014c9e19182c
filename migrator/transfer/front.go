package transfer

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// commit is a front's side of a move that it has not answered yet.
type commit struct {
	move    bidask.Deal
	source  policies.ReplicaID
	request string
	looking bool // the register is looked at; else the stream is being handed over
	fenced  bool // it is too late for the Swap
	heard   policies.Micros
}

func (m *Machine) commit(d bidask.Deal) *commit {
	for _, c := range m.commits {
		if c.move == d {
			return c
		}
	}
	return nil
}

// asked answers a source.
func (m *Machine) asked(msg Message) {
	if end, ok := m.answered.get(msg.Move); ok {
		m.send(end)
		return
	}
	if c := m.commit(msg.Move); c != nil {
		c.heard = m.now
		m.send(Message{Kind: Pending, To: msg.From, Move: msg.Move})
		if c.fenced && !c.looking {
			m.look(c)
		}
		return
	}
	if len(m.commits) >= swaps {
		return
	}
	c := &commit{move: msg.Move, source: msg.From, request: msg.Request, heard: m.now}
	m.commits = append(m.commits, c)
	if msg.Kind == Whose {
		m.look(c)
		return
	}
	patience := m.c.Recompute
	if msg.Way == Live {
		patience = m.c.Commit
	}
	m.do(Action{Kind: Commit, Move: c.move, Peer: c.source, Message: msg, Deadline: m.now + patience})
}

// look asks the register. Whatever it says, the move's Swap does not count any
// more: else one that is late could begin what its source has given up.
func (m *Machine) look(c *commit) {
	c.fenced, c.looking = true, true
	m.do(Action{Kind: Look, Move: c.move, Peer: c.source, Request: c.request})
}

// settled takes the end of a hand-over, or what the register says.
func (m *Machine) settled(ev Event) {
	c := m.commit(ev.Move)
	if c == nil || c.looking != (ev.Kind == Held) {
		return
	}
	c.looking = false
	switch {
	case ev.Answer == Denied && ev.Kind == Settled:
		// The source's epoch is an old one, or it is the holder no more.
		m.look(c)
		return
	case ev.Answer == Pending:
		c.fenced = true
		m.send(Message{Kind: Pending, To: c.source, Move: c.move})
		return
	}
	end := Message{Kind: ev.Answer, To: c.source, Move: c.move, Epoch: ev.Epoch, Stall: ev.Stall}
	m.commits = without(m.commits, c)
	m.answered.put(c.move, end, m.now+m.c.Memory)
	m.send(end)
}
