package transfer

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// A stand is where an export stands.
type sourceState uint8

const (
	awaitingOpen sourceState = iota // the target's Open is awaited
	copying                         // Offer or Round is sent, Pulled is awaited
	listing                         // List is out
	freezing                        // Freeze is out
	verifying                       // Manifest is sent, Ready is awaited
	committing                      // Swap is sent, the front's word is awaited
)

// exportState is the source's side of a move.
type exportState struct {
	deal          bidask.Deal
	target        policies.ReplicaID
	request       Request
	engine        Engine
	transports    []string
	state         sourceState
	mode          Mode
	round         uint32 // the last one sent
	partialRounds uint32 // of them, those that only brought a part of what there was
	from          uint64 // positions before it are the target's already
	computed      uint64 // where the last round ends
	generation    uint64 // of the source's blocks, once listed
	listed        bool
	frozen        bool // Freeze was asked for, and neither Thaw nor Drop since
	last          Message
	sentAt        policies.Micros // when last was
	endBy         policies.Micros // of all that comes before Swap
	deadline      policies.Micros // until the target speaks, at most limit; 0: none any more
	retry         policies.Micros // swapping: when to ask the front again
	queryFrom     policies.Micros // swapping: from when on a Swap that was lost is given up
}

func (m *Machine) findExport(d bidask.Deal) *exportState {
	for _, x := range m.exports {
		if x.deal == d {
			return x
		}
	}
	return nil
}

// beginExport begins an export. What is known already goes on.
func (m *Machine) beginExport(ev Event) {
	if ev.Deal.Seller != m.cfg.Self || m.findExport(ev.Deal) != nil {
		return
	}
	x := &exportState{deal: ev.Deal, target: ev.Peer, request: ev.Request, engine: ev.Engine, transports: ev.Transports}
	x.endBy = m.now + m.cfg.MaxDuration
	m.exports = append(m.exports, x)
	switch {
	case ev.Request.Pinned != policies.NotPinned:
		m.failExport(x, Pinned)
	case slices.ContainsFunc(m.exports, func(o *exportState) bool { return o != x && o.request.ID == x.request.ID }):
		m.failExport(x, AlreadyMigrating)
	default:
		// The market's word may take a while to reach the target.
		x.deadline = m.now + m.cfg.PeerTimeout + m.cfg.ReadyTimeout
	}
}

// handleTargetMessage handles what a target says about an own move.
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
		if x.state != committing { // the front finds out
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
			// Many blocks take their time to be summed up.
			m.send(Message{Kind: Pending, To: x.target, Deal: x.deal})
		}
	case Ready:
		switch {
		case x.state == committing:
			m.send(Message{Kind: Pending, To: x.target, Deal: x.deal})
		case x.state == verifying && msg.Round == x.round, x.state == copying && x.mode == Reprompt:
			m.sendCommit(x)
		}
	}
}

// acceptOpen chooses the way and says so.
func (m *Machine) acceptOpen(x *exportState, open Message) {
	common := slices.ContainsFunc(x.transports, func(t string) bool { return slices.Contains(open.Transports, t) })
	x.mode = Reprompt
	if x.engine.Fingerprint != 0 && x.engine.Fingerprint == open.Engine.Fingerprint && x.engine.BlockTokens == open.Engine.BlockTokens &&
		common && open.VersionMin <= VersionMax && open.VersionMax >= VersionMin && x.request.Length >= uint64(x.engine.BlockTokens) {
		x.mode = Live
	}
	x.state = copying
	m.sendToTarget(x, Message{Kind: Accept, Request: x.request.ID, Epoch: x.request.Epoch, FrontEnd: x.request.FrontEnd, Mode: x.mode, Engine: x.engine, Span: Span{Length: x.request.Length}})
}

// sendToTarget tells the target something that it may ask for again.
func (m *Machine) sendToTarget(x *exportState, msg Message) {
	msg.To, msg.Deal = x.target, x.deal
	x.last, x.sentAt = msg, m.now
	m.send(msg)
}

// resendLast repeats what was said last, unless that may still be on its way.
func (m *Machine) resendLast(x *exportState) {
	if m.now-x.sentAt >= m.cfg.RetryInterval {
		x.sentAt = m.now
		m.send(x.last)
	}
}

// requestTable asks for the next round's table, or freezes when there have been enough.
func (m *Machine) requestTable(x *exportState) {
	if int(x.round-x.partialRounds) >= m.cfg.MaxRounds {
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

// handleTable takes a table: of a round, or the rest's.
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

// sendCommit asks the front to hand over. From here on it decides.
func (m *Machine) sendCommit(x *exportState) {
	span := x.last.Span
	x.state, x.deadline = committing, 0
	x.retry, x.queryFrom = m.now+m.cfg.RetryInterval, m.now+m.cfg.PeerTimeout
	x.last = Message{Kind: Commit, To: x.request.FrontEnd, Deal: x.deal, Request: x.request.ID, Epoch: x.request.Epoch, Target: x.target, Mode: x.mode,
		Span: Span{Length: span.Length, Hash: span.Hash, Cached: span.Cached, Prompt: span.Prompt}}
	m.send(x.last)
}

// handleFrontEndMessage takes the front's word.
func (m *Machine) handleFrontEndMessage(msg Message) {
	x := m.findExport(msg.Deal)
	if x == nil || x.state != committing || msg.From != x.request.FrontEnd {
		return
	}
	switch msg.Kind {
	case Committed:
		m.unfreeze(x, Drop)
		m.endExport(x, Message{Kind: Committed, Epoch: msg.Epoch})
		m.emit(Action{Kind: Completed, Deal: x.deal, Peer: x.target, Stall: msg.Stall})
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

// dropRequest gives a request up that is not the source's any more.
func (m *Machine) dropRequest(x *exportState, why Failure) {
	m.unfreeze(x, Drop)
	m.failExport(x, why)
}

// unfreeze thaws or drops what is frozen.
func (m *Machine) unfreeze(x *exportState, how ActionKind) {
	if x.frozen {
		x.frozen = false
		m.emit(Action{Kind: how, Deal: x.deal, Request: x.request.ID})
	}
}

// failExport ends an export that does not move; the request goes on here unless
// it was dropped before.
func (m *Machine) failExport(x *exportState, why Failure) {
	m.unfreeze(x, Thaw)
	m.endExport(x, Message{Kind: Abort, Failure: why})
	m.emit(Action{Kind: Failed, Deal: x.deal, Peer: x.target, Failure: why})
}

// endExport forgets an export and tells its target how it ended.
func (m *Machine) endExport(x *exportState, end Message) {
	m.emit(Action{Kind: Revoke, Deal: x.deal, Peer: x.target})
	end.To, end.Deal = x.target, x.deal
	m.exportResults.put(x.deal, end, m.now+m.cfg.ResultRetention)
	m.send(end)
	m.exports = without(m.exports, x)
}

// abortExport is the market's word; after Swap it comes too late.
func (m *Machine) abortExport(d bidask.Deal) {
	if x := m.findExport(d); x != nil && x.state != committing {
		m.failExport(x, Withdrawn)
	}
}

// handleExportFailure ends what the engine refused, and what is found to be over while
// the target pulls.
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

// failExportsOfFrontEnd ends the moves of requests that are over with their front.
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
			m.failExport(x, EngineRefused) // the engine's silence
		case m.due(x.deadline):
			m.failExport(x, PeerTimeout)
		case m.due(x.retry):
			if m.now >= x.queryFrom {
				x.last.Kind = Query
			}
			x.retry = m.now + m.cfg.RetryInterval
			m.send(x.last)
		}
	}
}
