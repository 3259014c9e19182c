package move

import (
	"slices"

	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// sourceState is the state of an export.
type sourceState uint8

const (
	awaitingOpen sourceState = iota // waiting for the target's Open
	copying                         // Accept or Round was sent; waiting for Pulled
	listing                         // waiting for the answer to List
	freezing                        // waiting for the answer to Freeze
	verifying                       // Manifest was sent; waiting for Ready
	committing                      // Commit was sent; waiting for the front end
)

func (s sourceState) String() string {
	return [...]string{"awaiting open", "copying", "listing", "freezing", "verifying", "committing"}[s]
}

// exportState is the source's side of a migration.
type exportState struct {
	deal          bidask.Deal
	target        policies.ReplicaID
	request       Request
	engine        KVFormat
	transports    []string
	connector     engineinfo.KVConnector // of the target's engine
	state         sourceState
	mode          Mode
	round         uint32 // the last one sent
	partialRounds uint32 // how many of the rounds were only a part of the blocks
	from          uint64 // the target has the positions before it
	computed      uint64 // end of the last round
	generation    uint64 // of the source's blocks, valid once listed
	listed        bool
	frozen        bool // Freeze was requested, and neither Thaw nor Drop since
	last          Message
	sentAt        policies.Micros // when last was sent
	endBy         policies.Micros // end of everything before Commit
	deadline      policies.Micros // until the target must send something, at most endBy; 0: none
	retry         policies.Micros // committing: when to ask the front end again
	queryFrom     policies.Micros // committing: when a Commit counts as lost and Query is sent instead
}

func (m *Machine) findExport(d bidask.Deal) *exportState {
	for _, x := range m.exports {
		if x.deal == d {
			return x
		}
	}
	return nil
}

// beginExport starts an export. A known one continues.
func (m *Machine) beginExport(ev Event) {
	if ev.Deal.Seller != m.cfg.Self || m.findExport(ev.Deal) != nil {
		return
	}
	x := &exportState{deal: ev.Deal, target: ev.Peer, request: ev.Request, engine: ev.Engine, transports: ev.Transports}
	x.endBy = m.now + maxDuration
	m.exports = append(m.exports, x)
	switch {
	case ev.Request.Pinned != policies.NotPinned:
		m.failExport(x, Pinned)
	case slices.ContainsFunc(m.exports, func(o *exportState) bool { return o != x && o.request.ID == x.request.ID }):
		m.failExport(x, AlreadyMigrating)
	default:
		// The market's message may take a while to reach the target.
		x.deadline = m.now + m.cfg.PeerTimeout + m.cfg.ReadyTimeout
	}
}

// handleTargetMessage handles a message from the target of an export.
func (m *Machine) handleTargetMessage(msg Message) {
	x := m.findExport(msg.Deal)
	if x == nil {
		if msg.Kind != Abort {
			end, ok := m.exportResults.get(msg.Deal)
			if !ok || end.To != msg.From {
				end = Message{Kind: Abort, Deal: msg.Deal, Failure: UnknownToPeer}
			}
			end.To = msg.From
			m.send(end)
		}
		return
	}
	if msg.From != x.target {
		if msg.Kind != Abort {
			m.send(Message{Kind: Abort, To: msg.From, Deal: msg.Deal, Failure: UnknownToPeer})
		}
		return
	}
	if x.state != committing && x.state != freezing && x.state != verifying {
		x.deadline = min(m.now+m.cfg.PeerTimeout, x.endBy)
	}
	switch msg.Kind {
	case Abort:
		if x.state != committing { // too late afterwards: the front end decides
			m.failExport(x, msg.Failure)
		}
	case Open:
		switch {
		case x.state == awaitingOpen:
			m.acceptOpen(x, msg)
		case x.state == copying && x.round == 0:
			m.resendLast(x)
		}
	case Pulled:
		switch {
		case x.mode != Live:
		case x.state == copying && msg.Round == x.round:
			x.from = x.computed
			m.requestTable(x)
		case (x.state == copying || x.state == verifying) && msg.Round+1 == x.round:
			m.resendLast(x)
		case (x.state == listing || x.state == freezing) && msg.Round == x.round:
			// Computing the checksums of many blocks takes time.
			m.send(Message{Kind: Pending, To: x.target, Deal: x.deal})
		}
	case Ready:
		switch {
		case x.state == committing:
			m.send(Message{Kind: Pending, To: x.target, Deal: x.deal})
		case x.state == verifying && msg.Round == x.round, x.state == copying && x.mode != Live:
			m.sendCommit(x)
		}
	}
}

// acceptOpen chooses the mode and sends Accept.
func (m *Machine) acceptOpen(x *exportState, open Message) {
	common := slices.ContainsFunc(x.transports, func(t string) bool { return slices.Contains(open.Transports, t) })
	x.mode, x.connector = Reprompt, open.Connector
	if x.request.KeepsKV {
		x.mode = Handoff
	}
	if x.engine.Fingerprint != 0 && x.engine.Fingerprint == open.Engine.Fingerprint && x.engine.BlockTokens == open.Engine.BlockTokens &&
		common && open.VersionMin <= VersionMax && open.VersionMax >= VersionMin && x.request.Length >= uint64(x.engine.BlockTokens) {
		x.mode = Live
	}
	x.state = copying
	m.sendToTarget(x, Message{Kind: Accept, Request: x.request.ID, Epoch: x.request.Epoch, FrontEnd: x.request.FrontEnd, Mode: x.mode, Engine: x.engine, Span: Span{Length: x.request.Length}})
}

// sendToTarget sends a message that the target may ask for again.
func (m *Machine) sendToTarget(x *exportState, msg Message) {
	msg.To, msg.Deal = x.target, x.deal
	x.last, x.sentAt = msg, m.now
	m.send(msg)
}

// resendLast sends the last message again, unless it may still be on its way.
func (m *Machine) resendLast(x *exportState) {
	if m.now-x.sentAt >= retryInterval {
		x.sentAt = m.now
		m.send(x.last)
	}
}

// requestTable asks for the next round's table, or freezes after enough rounds.
func (m *Machine) requestTable(x *exportState) {
	if int(x.round-x.partialRounds) >= maxRounds {
		m.requestFreeze(x)
		return
	}
	x.state = listing
	m.emit(Action{Kind: List, Deal: x.deal, Request: x.request.ID, Round: x.round + 1, Span: Span{From: x.from}})
}

func (m *Machine) requestFreeze(x *exportState) {
	x.state, x.frozen, x.deadline = freezing, true, m.now+m.cfg.FreezeTimeout
	m.emit(Action{Kind: Freeze, Deal: x.deal, Request: x.request.ID, Span: Span{From: x.from}, Deadline: x.deadline})
}

// handleTable handles the table of a round or of the frozen rest.
func (m *Machine) handleTable(ev Event) {
	x := m.findExport(ev.Deal)
	if x == nil || x.state != listing && x.state != freezing || (x.state == freezing) != (ev.Kind == Frozen) {
		return
	}
	if x.listed && ev.Span.Generation != x.generation {
		m.failExport(x, Preempted)
		return
	}
	x.listed, x.generation = true, ev.Span.Generation
	if ev.Kind == Frozen {
		x.round++
		x.state = verifying
		m.sendToTarget(x, Message{Kind: Manifest, Round: x.round, Span: ev.Span, Table: ev.Table})
		return
	}
	if blocks := (ev.Span.Computed - x.from) / uint64(x.engine.BlockTokens); ev.Span.Computed <= x.from || blocks <= uint64(m.cfg.TailBlocks) && !ev.Partial {
		m.requestFreeze(x)
		return
	}
	x.round++
	if ev.Partial {
		x.partialRounds++
	}
	x.state, x.computed = copying, ev.Span.Computed
	m.sendToTarget(x, Message{Kind: Round, Round: x.round, Span: ev.Span, Table: ev.Table})
}

// sendCommit asks the front end to switch the holder. From here on the front end decides.
func (m *Machine) sendCommit(x *exportState) {
	span := x.last.Span
	x.state, x.deadline = committing, 0
	x.retry, x.queryFrom = m.now+retryInterval, m.now+m.cfg.PeerTimeout
	x.last = Message{Kind: Commit, To: x.request.FrontEnd, Deal: x.deal, Request: x.request.ID, Epoch: x.request.Epoch, Target: x.target, Mode: x.mode, TargetConnector: x.connector,
		Span: Span{Length: span.Length, Hash: span.Hash, Cached: span.Cached}}
	m.send(x.last)
}

// handleFrontEndMessage handles the front end's answer to Commit or Query.
func (m *Machine) handleFrontEndMessage(msg Message) {
	x := m.findExport(msg.Deal)
	if x == nil || x.state != committing || msg.From != x.request.FrontEnd {
		return
	}
	switch msg.Kind {
	case Committed:
		m.unfreeze(x, Drop)
		m.endExport(x, Message{Kind: Committed, Epoch: msg.Epoch, Mode: msg.Mode})
		m.emit(Action{Kind: Completed, Deal: x.deal, Peer: x.target, Stall: msg.Stall, Mode: msg.Mode})
	case Reverted:
		m.unfreeze(x, Thaw)
		m.endExport(x, Message{Kind: Abort, Failure: TargetFailed})
		m.emit(Action{Kind: Failed, Deal: x.deal, Peer: x.target, Failure: TargetFailed, Request: x.request.ID, Epoch: msg.Epoch})
	case Ended:
		m.dropRequest(x, RequestEnded)
	case Rejected:
		m.dropRequest(x, HeldElsewhere)
	}
}

// dropRequest drops a request that this replica does not hold any more.
func (m *Machine) dropRequest(x *exportState, why Failure) {
	m.unfreeze(x, Drop)
	m.failExport(x, why)
}

// unfreeze thaws or drops a frozen request.
func (m *Machine) unfreeze(x *exportState, how ActionKind) {
	if x.frozen {
		x.frozen = false
		m.emit(Action{Kind: how, Deal: x.deal, Request: x.request.ID})
	}
}

// failExport ends an export without migration; the request continues here unless it was
// dropped before.
func (m *Machine) failExport(x *exportState, why Failure) {
	m.unfreeze(x, Thaw)
	m.endExport(x, Message{Kind: Abort, Failure: why})
	m.emit(Action{Kind: Failed, Deal: x.deal, Peer: x.target, Failure: why})
}

// endExport forgets an export and sends its result to the target.
func (m *Machine) endExport(x *exportState, end Message) {
	m.emit(Action{Kind: Revoke, Deal: x.deal, Peer: x.target})
	end.To, end.Deal = x.target, x.deal
	m.exportResults.put(x.deal, end, m.now+resultRetention)
	m.send(end)
	m.exports = without(m.exports, x)
}

// abortExport ends an export that the market withdraws; after Commit it is too late.
func (m *Machine) abortExport(d bidask.Deal) {
	if x := m.findExport(d); x != nil && x.state != committing {
		m.failExport(x, Withdrawn)
	}
}

// handleExportFailure ends an export after the engine refused a call, or after its
// request ended while the target pulled.
func (m *Machine) handleExportFailure(ev Event) {
	if x := m.findExport(ev.Deal); x != nil && (x.state == listing || x.state == freezing || x.state == copying) {
		m.failExport(x, ev.Failure)
	}
}

func (m *Machine) failExportsTo(peer policies.ReplicaID) {
	for _, x := range slices.Clone(m.exports) {
		if x.target == peer && x.state != committing {
			m.failExport(x, PeerGone)
		}
	}
}

// failExportsOfFrontEnd ends the migrations of requests that have ended with their front end.
func (m *Machine) failExportsOfFrontEnd(peer policies.ReplicaID) {
	for _, x := range slices.Clone(m.exports) {
		switch {
		case x.request.FrontEnd != peer:
		case x.state == committing:
			m.dropRequest(x, FrontEndGone)
		default:
			m.failExport(x, FrontEndGone)
		}
	}
}

// tickExports enforces the source's deadlines.
func (m *Machine) tickExports() {
	for _, x := range slices.Clone(m.exports) {
		switch {
		case m.due(x.deadline) && m.now >= x.endBy:
			m.failExport(x, DeadlineExceeded)
		case m.due(x.deadline) && (x.state == freezing || x.state == listing):
			m.failExport(x, EngineRefused) // the engine did not answer
		case m.due(x.deadline):
			m.failExport(x, PeerTimeout)
		case m.due(x.retry):
			if m.now >= x.queryFrom {
				x.last.Kind = Query
			}
			x.retry = m.now + retryInterval
			m.send(x.last)
		}
	}
}
