package transfer

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// A stand is where an export stands.
type stand uint8

const (
	offered  stand = iota // the target's Open is awaited
	rounds                // Offer or Round is sent, Pulled is awaited
	listing               // List is out
	freezing              // Freeze is out
	manifest              // Manifest is sent, Ready is awaited
	swapping              // Swap is sent, the front's word is awaited
)

// export is the source's side of a move.
type export struct {
	move       bidask.Deal
	target     policies.ReplicaID
	subject    Subject
	engine     Engine
	transports []string
	stand      stand
	way        Way
	round      uint32 // the last one sent
	parts      uint32 // of them, those that only brought a part of what there was
	from       uint64 // positions before it are the target's already
	computed   uint64 // where the last round ends
	generation uint64 // of the source's blocks, once listed
	listed     bool
	frozen     bool // Freeze was asked for, and neither Thaw nor Drop since
	last       Message
	sent       policies.Micros // when last was
	limit      policies.Micros // of all that comes before Swap
	deadline   policies.Micros // until the target speaks, at most limit; 0: none any more
	retry      policies.Micros // swapping: when to ask the front again
	fence      policies.Micros // swapping: from when on a Swap that was lost is given up
}

func (m *Machine) export(d bidask.Deal) *export {
	for _, x := range m.exports {
		if x.move == d {
			return x
		}
	}
	return nil
}

// exporting begins an export. What is known already goes on.
func (m *Machine) exporting(ev Event) {
	if ev.Move.Seller != m.c.Self || m.export(ev.Move) != nil {
		return
	}
	x := &export{move: ev.Move, target: ev.Peer, subject: ev.Subject, engine: ev.Engine, transports: ev.Transports}
	x.limit = m.now + m.c.Longest
	m.exports = append(m.exports, x)
	switch {
	case ev.Subject.Fixed != policies.NotPinned:
		m.failExport(x, Pinned)
	case slices.ContainsFunc(m.exports, func(o *export) bool { return o != x && o.subject.Request == x.subject.Request }):
		m.failExport(x, Busy)
	default:
		// The market's word may take a while to reach the target.
		x.deadline = m.now + m.c.Silence + m.c.Lease
	}
}

// hearTarget handles what a target says about an own move.
func (m *Machine) hearTarget(msg Message) {
	x := m.export(msg.Move)
	if x == nil {
		if msg.Kind != Abort {
			end, ok := m.sold.get(msg.Move)
			if !ok || end.To != msg.From {
				end = Message{Kind: Abort, Move: msg.Move, Why: Unknown}
			}
			end.To = msg.From
			m.send(end)
		}
		return
	}
	if msg.From != x.target {
		if msg.Kind != Abort {
			m.send(Message{Kind: Abort, To: msg.From, Move: msg.Move, Why: Unknown})
		}
		return
	}
	if x.stand != swapping && x.stand != freezing && x.stand != manifest {
		x.deadline = min(m.now+m.c.Silence, x.limit)
	}
	switch msg.Kind {
	case Abort:
		if x.stand != swapping { // the front finds out
			m.failExport(x, msg.Why)
		}
	case Open:
		switch {
		case x.stand == offered:
			m.offer(x, msg)
		case x.stand == rounds && x.round == 0:
			m.again(x)
		}
	case Pulled:
		switch {
		case x.way != Live:
		case x.stand == rounds && msg.Round == x.round:
			x.from = x.computed
			m.list(x)
		case (x.stand == rounds || x.stand == manifest) && msg.Round+1 == x.round:
			m.again(x)
		case (x.stand == listing || x.stand == freezing) && msg.Round == x.round:
			// Many blocks take their time to be summed up.
			m.send(Message{Kind: Pending, To: x.target, Move: x.move})
		}
	case Ready:
		switch {
		case x.stand == swapping:
			m.send(Message{Kind: Pending, To: x.target, Move: x.move})
		case x.stand == manifest && msg.Round == x.round, x.stand == rounds && x.way == Reprompt:
			m.swap(x)
		}
	}
}

// offer chooses the way and says so.
func (m *Machine) offer(x *export, open Message) {
	common := slices.ContainsFunc(x.transports, func(t string) bool { return slices.Contains(open.Transports, t) })
	x.way = Reprompt
	if x.engine.Fingerprint != 0 && x.engine.Fingerprint == open.Engine.Fingerprint && x.engine.BlockTokens == open.Engine.BlockTokens &&
		common && open.VersionMin <= VersionMax && open.VersionMax >= VersionMin && x.subject.Length >= uint64(x.engine.BlockTokens) {
		x.way = Live
	}
	x.stand = rounds
	m.say(x, Message{Kind: Offer, Request: x.subject.Request, Epoch: x.subject.Epoch, Front: x.subject.Front, Way: x.way, Engine: x.engine, Span: Span{Length: x.subject.Length}})
}

// say tells the target something that it may ask for again.
func (m *Machine) say(x *export, msg Message) {
	msg.To, msg.Move = x.target, x.move
	x.last, x.sent = msg, m.now
	m.send(msg)
}

// again repeats what was said last, unless that may still be on its way.
func (m *Machine) again(x *export) {
	if m.now-x.sent >= m.c.Retry {
		x.sent = m.now
		m.send(x.last)
	}
}

// list asks for the next round's table, or freezes when there have been enough.
func (m *Machine) list(x *export) {
	if int(x.round-x.parts) >= m.c.Rounds {
		m.freeze(x)
		return
	}
	x.stand = listing
	m.do(Action{Kind: List, Move: x.move, Request: x.subject.Request, Round: x.round + 1, Span: Span{From: x.from}})
}

func (m *Machine) freeze(x *export) {
	x.stand, x.frozen, x.deadline = freezing, true, m.now+m.c.Frozen
	m.do(Action{Kind: Freeze, Move: x.move, Request: x.subject.Request, Span: Span{From: x.from}, Deadline: x.deadline})
}

// listed takes a table: of a round, or the rest's.
func (m *Machine) listed(ev Event) {
	x := m.export(ev.Move)
	if x == nil || x.stand != listing && x.stand != freezing || (x.stand == freezing) != (ev.Kind == Frozen) {
		return
	}
	if x.listed && ev.Span.Generation != x.generation {
		m.failExport(x, Preempted)
		return
	}
	x.listed, x.generation = true, ev.Span.Generation
	if ev.Kind == Frozen {
		x.round++
		x.stand = manifest
		m.say(x, Message{Kind: Manifest, Round: x.round, Span: ev.Span, Table: ev.Table})
		return
	}
	if blocks := (ev.Span.Computed - x.from) / uint64(x.engine.BlockTokens); ev.Span.Computed <= x.from || blocks <= uint64(m.c.Tail) && !ev.Part {
		m.freeze(x)
		return
	}
	x.round++
	if ev.Part {
		x.parts++
	}
	x.stand, x.computed = rounds, ev.Span.Computed
	m.say(x, Message{Kind: Round, Round: x.round, Span: ev.Span, Table: ev.Table})
}

// swap asks the front to hand over. From here on it decides.
func (m *Machine) swap(x *export) {
	span := x.last.Span
	x.stand, x.deadline = swapping, 0
	x.retry, x.fence = m.now+m.c.Retry, m.now+m.c.Silence
	x.last = Message{Kind: Swap, To: x.subject.Front, Move: x.move, Request: x.subject.Request, Epoch: x.subject.Epoch, Target: x.target, Way: x.way,
		Span: Span{Length: span.Length, Hash: span.Hash, Cached: span.Cached, Prompt: span.Prompt}}
	m.send(x.last)
}

// hearFront takes the front's word.
func (m *Machine) hearFront(msg Message) {
	x := m.export(msg.Move)
	if x == nil || x.stand != swapping || msg.From != x.subject.Front {
		return
	}
	switch msg.Kind {
	case Done:
		m.letGo(x, Drop)
		m.endExport(x, Message{Kind: Done, Epoch: msg.Epoch})
		m.do(Action{Kind: Moved, Move: x.move, Peer: x.target, Stall: msg.Stall})
	case Back:
		m.letGo(x, Thaw)
		m.endExport(x, Message{Kind: Abort, Why: Returned})
		m.do(Action{Kind: Failed, Move: x.move, Peer: x.target, Why: Returned, Request: x.subject.Request, Epoch: msg.Epoch})
	case Ended:
		m.give(x, Over)
	case Denied:
		m.give(x, Taken)
	}
}

// give gives a request up that is not the source's any more.
func (m *Machine) give(x *export, why Why) {
	m.letGo(x, Drop)
	m.failExport(x, why)
}

// letGo thaws or drops what is frozen.
func (m *Machine) letGo(x *export, how ActionKind) {
	if x.frozen {
		x.frozen = false
		m.do(Action{Kind: how, Move: x.move, Request: x.subject.Request})
	}
}

// failExport ends an export that does not move; the request goes on here unless
// it was dropped before.
func (m *Machine) failExport(x *export, why Why) {
	m.letGo(x, Thaw)
	m.endExport(x, Message{Kind: Abort, Why: why})
	m.do(Action{Kind: Failed, Move: x.move, Peer: x.target, Why: why})
}

// endExport forgets an export and tells its target how it ended.
func (m *Machine) endExport(x *export, end Message) {
	m.do(Action{Kind: Revoke, Move: x.move, Peer: x.target})
	end.To, end.Move = x.target, x.move
	m.sold.put(x.move, end, m.now+m.c.Memory)
	m.send(end)
	m.exports = without(m.exports, x)
}

// exportAborted is the market's word; after Swap it comes too late.
func (m *Machine) exportAborted(d bidask.Deal) {
	if x := m.export(d); x != nil && x.stand != swapping {
		m.failExport(x, Withdrawn)
	}
}

// exportBroken ends what the engine refused, and what is found to be over while
// the target pulls.
func (m *Machine) exportBroken(ev Event) {
	if x := m.export(ev.Move); x != nil && (x.stand == listing || x.stand == freezing || x.stand == rounds) {
		m.failExport(x, ev.Why)
	}
}

func (m *Machine) targetGone(peer policies.ReplicaID) {
	for _, x := range slices.Clone(m.exports) {
		if x.target == peer && x.stand != swapping {
			m.failExport(x, PeerGone)
		}
	}
}

// frontGone ends the moves of requests that are over with their front.
func (m *Machine) frontGone(peer policies.ReplicaID) {
	for _, x := range slices.Clone(m.exports) {
		switch {
		case x.subject.Front != peer:
		case x.stand == swapping:
			m.give(x, FrontGone)
		default:
			m.failExport(x, FrontGone)
		}
	}
}

// tickExports enforces the source's deadlines.
func (m *Machine) tickExports() {
	for _, x := range slices.Clone(m.exports) {
		switch {
		case m.due(x.deadline) && m.now >= x.limit:
			m.failExport(x, Late)
		case m.due(x.deadline) && (x.stand == freezing || x.stand == listing):
			m.failExport(x, Refused) // the engine's silence
		case m.due(x.deadline):
			m.failExport(x, Silent)
		case m.due(x.retry):
			if m.now >= x.fence {
				x.last.Kind = Whose
			}
			x.retry = m.now + m.c.Retry
			m.send(x.last)
		}
	}
}
