package transfer

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// A state is where an import is.
type state uint8

const (
	opening   state = iota // the source's Offer is awaited
	preparing              // Prepare is out
	asking                 // the next table is awaited
	pulling                // Pull is out
	ready                  // all is here; the front may open the leg
	adopted                // it has
)

// repulls is how often blocks with wrong sums are pulled again in one round.
const repulls = 2

// incoming is the target's side of a move.
type incoming struct {
	move     bidask.Deal
	source   policies.ReplicaID
	engine   Engine
	open     Message
	state    state
	way      Way
	front    policies.ReplicaID
	request  string
	round    uint32 // the last one that was listed
	position uint64 // positions before it are here
	pull     Action // pulling: for once more
	tries    int
	limit    policies.Micros // of all that comes before ready
	deadline policies.Micros // until the source speaks, or of the state
	retry    policies.Micros // when to speak again
}

func (m *Machine) incoming(d bidask.Deal) *incoming {
	for _, i := range m.imports {
		if i.move == d {
			return i
		}
	}
	return nil
}

// importing begins an import. What is known already goes on.
func (m *Machine) importing(ev Event) {
	if ev.Move.Seller == m.c.Self || m.incoming(ev.Move) != nil {
		return
	}
	i := &incoming{move: ev.Move, source: ev.Peer, engine: ev.Engine, limit: m.now + m.c.Longest}
	i.open = Message{Kind: Open, Engine: ev.Engine, VersionMin: VersionMin, VersionMax: VersionMax, Transports: ev.Transports}
	m.imports = append(m.imports, i)
	m.enter(i, opening)
}

// enter takes an import to a state in which the source's word is awaited, or
// the driver's, and says so.
func (m *Machine) enter(i *incoming, s state) {
	i.state = s
	switch s {
	case preparing, pulling:
		i.deadline = i.limit
	default:
		m.heard(i)
	}
	m.speak(i)
}

// heard counts the source's silence from now.
func (m *Machine) heard(i *incoming) {
	switch i.state {
	case opening, asking:
		i.deadline = min(m.now+m.c.Silence, i.limit)
	case ready, adopted:
		i.deadline = m.now + m.c.Lease
	}
}

// speak tells the source where the import is.
func (m *Machine) speak(i *incoming) {
	msg := Message{Kind: Open}
	switch i.state {
	case opening:
		msg = i.open
	case preparing:
		msg.Kind = Pulling
	case asking:
		msg.Kind, msg.Round = Pulled, i.round
	case pulling:
		msg.Kind, msg.Round = Pulling, i.round
	case ready, adopted:
		msg.Kind, msg.Round = Ready, i.round
	}
	msg.To, msg.Move = i.source, i.move
	i.retry = m.now + m.c.Retry
	m.send(msg)
}

// hearSource handles what a source says about its move.
func (m *Machine) hearSource(msg Message) {
	i := m.incoming(msg.Move)
	if i == nil {
		switch msg.Kind {
		case Offer, Round, Manifest:
			m.send(Message{Kind: Abort, To: msg.From, Move: msg.Move, Why: Unknown})
		}
		return
	}
	m.heard(i)
	switch msg.Kind {
	case Offer:
		if i.state == opening {
			m.offered(i, msg)
		}
	case Round, Manifest:
		if i.state == asking && msg.Round == i.round+1 {
			m.tabled(i, msg)
		}
	case Done:
		if i.state >= ready {
			m.endImport(i)
			m.do(Action{Kind: Moved, Move: i.move, Peer: i.source})
		}
	case Abort:
		if i.state == adopted && msg.Why == Unknown {
			// The source has forgotten; whether the front goes on here is not its to
			// say any more.
			m.endImport(i)
			m.do(Action{Kind: Moved, Move: i.move, Peer: i.source})
			return
		}
		m.failImport(i, msg.Why)
	}
}

// offered goes the way that the source has chosen.
func (m *Machine) offered(i *incoming, msg Message) {
	i.way, i.front, i.request = msg.Way, msg.Front, msg.Request
	switch {
	case msg.Way == Reprompt:
		// The engine finds blocks by itself when the ids come.
		m.do(Action{Kind: Release, Move: i.move, Peer: i.source})
		m.enter(i, ready)
	case msg.Way == Live && i.engine.Fingerprint != 0 && msg.Engine.Fingerprint == i.engine.Fingerprint && msg.Engine.BlockTokens == i.engine.BlockTokens:
		m.enter(i, preparing)
		m.do(Action{Kind: Prepare, Move: i.move, Peer: i.source, Span: Span{Length: msg.Length}, Offers: msg.Offers, Deadline: min(m.now+m.c.Silence, i.limit)})
	default:
		m.abortImport(i, Mismatched)
	}
}

func (m *Machine) prepared(d bidask.Deal) {
	if i := m.incoming(d); i != nil && i.state == preparing {
		m.enter(i, asking)
	}
}

// tabled pulls what a table lists, if it continues what is here.
func (m *Machine) tabled(i *incoming, msg Message) {
	s, last := msg.Span, msg.Kind == Manifest
	if s.From != i.position || s.Computed < s.From || last && s.Computed > s.Length || !last && i.engine.BlockTokens > 0 && s.Computed%uint64(i.engine.BlockTokens) != 0 {
		m.abortImport(i, Mismatched)
		return
	}
	i.round, i.tries = msg.Round, 0
	i.pull = Action{Kind: Pull, Move: i.move, Peer: i.source, Round: i.round, Span: s, Last: last, Table: msg.Table, Deadline: i.limit}
	m.enter(i, pulling)
	m.do(i.pull)
}

// pulled takes the end of a pull.
func (m *Machine) pulled(ev Event) {
	i := m.incoming(ev.Move)
	if i == nil || i.state != pulling || ev.Round != i.round {
		return
	}
	switch {
	case ev.Kind == Corrupt && i.tries >= repulls:
		m.abortImport(i, Corrupted)
	case ev.Kind == Corrupt:
		i.tries++
		m.do(i.pull)
	default:
		last := i.pull.Last
		i.position, i.pull = i.pull.Span.Computed, Action{}
		if last {
			m.enter(i, ready)
		} else {
			m.enter(i, asking)
		}
	}
}

// adopting lets a front have the blocks, once.
func (m *Machine) adopting(ev Event) {
	i := m.incoming(ev.Move)
	if i == nil || i.state != ready || i.way != Live || i.front != ev.Peer || i.request != ev.Subject.Request {
		m.do(Action{Kind: Deny, Move: ev.Move, Peer: ev.Peer})
		return
	}
	i.state = adopted
	m.heard(i)
	m.do(Action{Kind: Admit, Move: ev.Move, Peer: ev.Peer})
}

// abortImport ends an import and tells its source.
func (m *Machine) abortImport(i *incoming, why Why) {
	m.send(Message{Kind: Abort, To: i.source, Move: i.move, Why: why})
	m.failImport(i, why)
}

func (m *Machine) failImport(i *incoming, why Why) {
	m.endImport(i)
	m.do(Action{Kind: Failed, Move: i.move, Peer: i.source, Why: why})
}

// endImport forgets an import and frees what nobody has adopted.
func (m *Machine) endImport(i *incoming) {
	m.imports = without(m.imports, i)
	m.do(Action{Kind: Release, Move: i.move, Peer: i.source})
}

// importAborted is the market's word; once the leg is open it comes too late.
func (m *Machine) importAborted(d bidask.Deal) {
	if i := m.incoming(d); i != nil && i.state != adopted {
		m.abortImport(i, Withdrawn)
	}
}

func (m *Machine) importBroken(ev Event) {
	if i := m.incoming(ev.Move); i != nil && (i.state == preparing || i.state == pulling) {
		m.abortImport(i, ev.Why)
	}
}

// importsGone ends what cannot be finished. What is ready may still be adopted
// when its source is gone: the front may have heard the Swap.
func (m *Machine) importsGone(peer policies.ReplicaID) {
	for _, i := range slices.Clone(m.imports) {
		switch {
		case i.source == peer && i.state < ready:
			m.failImport(i, PeerGone)
		case i.front == peer && i.state <= ready:
			m.abortImport(i, FrontGone)
		}
	}
}

// tickImports enforces the target's deadlines, and speaks.
func (m *Machine) tickImports() {
	for _, i := range slices.Clone(m.imports) {
		switch {
		case m.due(i.deadline) && i.state == adopted:
			// The source is gone, or cut off; the front and the engine have the rest.
			m.endImport(i)
			m.do(Action{Kind: Moved, Move: i.move, Peer: i.source})
		case m.due(i.deadline) && i.state < ready && m.now >= i.limit:
			m.abortImport(i, Late)
		case m.due(i.deadline):
			m.abortImport(i, Silent)
		case m.due(i.retry):
			m.speak(i)
		}
	}
}
