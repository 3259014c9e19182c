package move

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// targetState is the state of an import.
type targetState uint8

const (
	awaitingAccept targetState = iota // waiting for the source's Accept
	preparing                         // waiting for the answer to Prepare
	awaitingTable                     // waiting for the next Round or Manifest
	pulling                           // waiting for the answer to Pull
	ready                             // all blocks are here; the front end may open the leg
	adopted                           // the leg has adopted the blocks
)

func (s targetState) String() string {
	return [...]string{"awaiting accept", "preparing", "awaiting table", "pulling", "ready", "adopted"}[s]
}

// importState is the target's side of a migration.
type importState struct {
	deal     bidask.Deal
	source   policies.ReplicaID
	engine   KVFormat
	open     Message
	state    targetState
	mode     Mode
	frontEnd policies.ReplicaID
	request  string
	round    uint32          // the last one that was listed
	position uint64          // the positions before it are here
	end      uint64          // pulling: the round's end
	last     bool            // pulling: all blocks are here then
	endBy    policies.Micros // end of everything before ready
	deadline policies.Micros // until the source must send something, or of the state
	retry    policies.Micros // when to send the state again
}

func (m *Machine) findImport(d bidask.Deal) *importState {
	for _, i := range m.imports {
		if i.deal == d {
			return i
		}
	}
	return nil
}

// beginImport starts an import. A known one continues.
func (m *Machine) beginImport(ev Event) {
	if ev.Deal.Seller == m.cfg.Self || m.findImport(ev.Deal) != nil {
		return
	}
	i := &importState{deal: ev.Deal, source: ev.Peer, engine: ev.Engine, endBy: m.now + maxDuration}
	i.open = Message{Kind: Open, Engine: ev.Engine, VersionMin: VersionMin, VersionMax: VersionMax, Transports: ev.Transports}
	m.imports = append(m.imports, i)
	m.enterState(i, awaitingAccept)
}

// enterState changes to a state that waits for the source or the executor, and reports it
// to the source.
func (m *Machine) enterState(i *importState, s targetState) {
	i.state = s
	switch s {
	case preparing, pulling:
		i.deadline = i.endBy
	default:
		m.resetDeadline(i)
	}
	m.reportState(i)
}

// resetDeadline restarts the timeout of the source.
func (m *Machine) resetDeadline(i *importState) {
	switch i.state {
	case awaitingAccept, awaitingTable:
		i.deadline = min(m.now+m.cfg.PeerTimeout, i.endBy)
	case ready, adopted:
		i.deadline = m.now + m.cfg.ReadyTimeout
	}
}

// reportState sends the state of the import to the source.
func (m *Machine) reportState(i *importState) {
	msg := Message{Kind: Open}
	switch i.state {
	case awaitingAccept:
		msg = i.open
	case preparing:
		msg.Kind = Pulling
	case awaitingTable:
		msg.Kind, msg.Round = Pulled, i.round
	case pulling:
		msg.Kind, msg.Round = Pulling, i.round
	case ready, adopted:
		msg.Kind, msg.Round = Ready, i.round
	}
	msg.To, msg.Deal = i.source, i.deal
	i.retry = m.now + retryInterval
	m.send(msg)
}

// handleSourceMessage handles a message from the source of an import.
func (m *Machine) handleSourceMessage(msg Message) {
	i := m.findImport(msg.Deal)
	if i == nil {
		switch msg.Kind {
		case Accept, Round, Manifest:
			m.send(Message{Kind: Abort, To: msg.From, Deal: msg.Deal, Failure: UnknownToPeer})
		}
		return
	}
	m.resetDeadline(i)
	switch msg.Kind {
	case Accept:
		if i.state == awaitingAccept {
			m.handleAccept(i, msg)
		}
	case Round, Manifest:
		if i.state == awaitingTable && msg.Round == i.round+1 {
			m.handleRound(i, msg)
		}
	case Committed:
		if i.state >= ready {
			m.endImport(i)
			m.emit(Action{Kind: Completed, Deal: i.deal, Peer: i.source, Mode: msg.Mode})
		}
	case Abort:
		if i.state == adopted && msg.Failure == UnknownToPeer {
			// The source has forgotten the migration; it does not decide any more
			// whether the front end continues here.
			m.endImport(i)
			m.emit(Action{Kind: Completed, Deal: i.deal, Peer: i.source})
			return
		}
		m.failImport(i, msg.Failure)
	}
}

// handleAccept continues in the mode that the source chose.
func (m *Machine) handleAccept(i *importState, msg Message) {
	i.mode, i.frontEnd, i.request = msg.Mode, msg.FrontEnd, msg.Request
	switch {
	case msg.Mode == Reprompt, msg.Mode == Handoff:
		// The engine finds cached blocks by itself when the ids arrive.
		m.emit(Action{Kind: Release, Deal: i.deal, Peer: i.source})
		m.enterState(i, ready)
	case msg.Mode == Live && i.engine.Fingerprint != 0 && msg.Engine.Fingerprint == i.engine.Fingerprint && msg.Engine.BlockTokens == i.engine.BlockTokens:
		m.enterState(i, preparing)
		m.emit(Action{Kind: Prepare, Deal: i.deal, Peer: i.source, Span: Span{Length: msg.Length}, Offers: msg.Offers, Deadline: min(m.now+m.cfg.PeerTimeout, i.endBy)})
	default:
		m.abortImport(i, TableMismatch)
	}
}

func (m *Machine) handlePrepared(d bidask.Deal) {
	if i := m.findImport(d); i != nil && i.state == preparing {
		m.enterState(i, awaitingTable)
	}
}

// handleRound pulls a table if it continues the blocks that are here.
func (m *Machine) handleRound(i *importState, msg Message) {
	s, last := msg.Span, msg.Kind == Manifest
	if s.From != i.position || s.Computed < s.From || last && s.Computed > s.Length || !last && i.engine.BlockTokens > 0 && s.Computed%uint64(i.engine.BlockTokens) != 0 {
		m.abortImport(i, TableMismatch)
		return
	}
	i.round, i.end, i.last = msg.Round, s.Computed, last
	m.enterState(i, pulling)
	m.emit(Action{Kind: Pull, Deal: i.deal, Peer: i.source, Round: i.round, Span: s, Last: last, Table: msg.Table, Deadline: i.endBy})
}

// handleVerified handles the end of a round.
func (m *Machine) handleVerified(ev Event) {
	i := m.findImport(ev.Deal)
	if i == nil || i.state != pulling || ev.Round != i.round {
		return
	}
	i.position = i.end
	if i.last {
		m.enterState(i, ready)
	} else {
		m.enterState(i, awaitingTable)
	}
}

// handleAdoptRequest lets a front end's leg adopt the blocks, once.
func (m *Machine) handleAdoptRequest(ev Event) {
	i := m.findImport(ev.Deal)
	if i == nil || i.state != ready || i.mode != Live || i.frontEnd != ev.Peer || i.request != ev.Request.ID {
		m.emit(Action{Kind: DenyAdopt, Deal: ev.Deal, Peer: ev.Peer})
		return
	}
	i.state = adopted
	m.resetDeadline(i)
	m.emit(Action{Kind: AllowAdopt, Deal: ev.Deal, Peer: ev.Peer})
}

// abortImport ends an import and sends Abort to its source.
func (m *Machine) abortImport(i *importState, why Failure) {
	m.send(Message{Kind: Abort, To: i.source, Deal: i.deal, Failure: why})
	m.failImport(i, why)
}

func (m *Machine) failImport(i *importState, why Failure) {
	m.endImport(i)
	m.emit(Action{Kind: Failed, Deal: i.deal, Peer: i.source, Failure: why})
}

// endImport forgets an import and frees its blocks unless they are adopted.
func (m *Machine) endImport(i *importState) {
	m.imports = without(m.imports, i)
	m.emit(Action{Kind: Release, Deal: i.deal, Peer: i.source})
}

// handleImportAbort ends an import that the market withdraws; once the leg is open it is too late.
func (m *Machine) handleImportAbort(d bidask.Deal) {
	if i := m.findImport(d); i != nil && i.state != adopted {
		m.abortImport(i, Withdrawn)
	}
}

func (m *Machine) handleImportFailure(ev Event) {
	if i := m.findImport(ev.Deal); i != nil && (i.state == preparing || i.state == pulling) {
		m.abortImport(i, ev.Failure)
	}
}

// failImportsOf ends the imports that cannot finish without a peer. A ready one may still
// be adopted when its source is gone: the front end may have received the Commit.
func (m *Machine) failImportsOf(peer policies.ReplicaID) {
	for _, i := range slices.Clone(m.imports) {
		switch {
		case i.source == peer && i.state < ready:
			m.failImport(i, PeerGone)
		case i.frontEnd == peer && i.state <= ready:
			m.abortImport(i, FrontEndGone)
		}
	}
}

// tickImports enforces the target's deadlines and sends its state again.
func (m *Machine) tickImports() {
	for _, i := range slices.Clone(m.imports) {
		switch {
		case m.due(i.deadline) && i.state == adopted:
			// The source is gone or partitioned; front end and engine finish without it.
			m.endImport(i)
			m.emit(Action{Kind: Completed, Deal: i.deal, Peer: i.source})
		case m.due(i.deadline) && i.state < ready && m.now >= i.endBy:
			m.abortImport(i, DeadlineExceeded)
		case m.due(i.deadline):
			m.abortImport(i, PeerTimeout)
		case m.due(i.retry):
			m.reportState(i)
		}
	}
}
