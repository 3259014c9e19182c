package move

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// commitRequest is the front end's side of a migration that it has not answered yet.
type commitRequest struct {
	deal          bidask.Deal
	source        policies.ReplicaID
	request       string
	lookingUp     bool // waiting for LookUpHolder; else for SwitchHolder
	commitRefused bool // a later Commit is treated as a Query
	heardAt       policies.Micros
}

func (m *Machine) findCommit(d bidask.Deal) *commitRequest {
	for _, c := range m.commits {
		if c.deal == d {
			return c
		}
	}
	return nil
}

// handleCommit answers a source's Commit or Query.
func (m *Machine) handleCommit(msg Message) {
	if end, ok := m.commitResults.get(msg.Deal); ok {
		m.send(end)
		return
	}
	if c := m.findCommit(msg.Deal); c != nil {
		c.heardAt = m.now
		m.send(Message{Kind: Pending, To: msg.From, Deal: msg.Deal})
		if c.commitRefused && !c.lookingUp {
			m.lookUpHolder(c)
		}
		return
	}
	if len(m.commits) >= maxCommits {
		return
	}
	c := &commitRequest{deal: msg.Deal, source: msg.From, request: msg.Request, heardAt: m.now}
	m.commits = append(m.commits, c)
	if msg.Kind == Query {
		m.lookUpHolder(c)
		return
	}
	patience := repromptTimeout
	if msg.Mode == Live {
		patience = m.cfg.CommitTimeout
	}
	m.emit(Action{Kind: SwitchHolder, Deal: c.deal, Peer: c.source, Message: msg, Deadline: m.now + patience})
}

// lookUpHolder looks up the holder in the register. From then on a Commit of the
// migration is treated as a Query: a late one could start what its source has given up.
func (m *Machine) lookUpHolder(c *commitRequest) {
	c.commitRefused, c.lookingUp = true, true
	m.emit(Action{Kind: LookUpHolder, Deal: c.deal, Peer: c.source, Request: c.request})
}

// handleResult handles the result of a switch or of a lookup.
func (m *Machine) handleResult(ev Event) {
	c := m.findCommit(ev.Deal)
	if c == nil || c.lookingUp != (ev.Kind == HolderResult) {
		return
	}
	c.lookingUp = false
	switch {
	case ev.Answer == Rejected && ev.Kind == SwitchResult:
		// The source's epoch is stale, or it is not the holder any more.
		m.lookUpHolder(c)
		return
	case ev.Answer == Pending:
		c.commitRefused = true
		m.send(Message{Kind: Pending, To: c.source, Deal: c.deal})
		return
	}
	end := Message{Kind: ev.Answer, To: c.source, Deal: c.deal, Epoch: ev.Epoch, Stall: ev.Stall, Mode: ev.Mode}
	m.commits = without(m.commits, c)
	m.commitResults.put(c.deal, end, m.now+resultRetention)
	m.send(end)
}
