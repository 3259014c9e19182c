package bidask

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// A state is where a win is.
type state uint8

const (
	reserving state = iota // the engine is asked for KV
	queued                 // for a free receive slot
	pulling                // a slot is held, the seller's answer is awaited
	importing              // the transfer has the word
)

// win is the buyer's side of a deal.
type win struct {
	deal     Deal
	handover policies.Migration
	priority policies.Tokens // the seller's load
	state    state
	skips    int             // how often the seller was busy
	first    bool            // a promise found no free slot: it goes before all others
	retry    policies.Micros // queued: not before
	answer   policies.Micros // pulling: until when
	promise  policies.Micros // queued: until when a Ready is expected; 0: none is
	deadline policies.Micros // of the lease, then of the transfer; 0: passed
}

// win finds the win of a deal.
func (m *Machine) win(d Deal) *win {
	for _, w := range m.wins {
		if w.deal == d {
			return w
		}
	}
	return nil
}

// hearSeller handles a message about another replica's sale.
func (m *Machine) hearSeller(msg Message) {
	switch msg.Kind {
	case Ask:
		m.bid(msg)
		return
	case Confirm:
		m.confirmed(msg)
		return
	}
	w := m.win(msg.Deal)
	if w == nil {
		if msg.Kind == Grant || msg.Kind == Ready {
			m.tell(Drop, msg.From, msg.Deal)
		}
		return
	}
	switch msg.Kind {
	case Busy:
		if w.state == pulling {
			m.skipped(w)
		}
	case Grant:
		m.granted(w)
	case Ready:
		m.ready(w)
	case Cancel:
		if w.state == importing {
			m.stop(w)
		} else {
			m.release(w)
		}
	}
}

// admits reports whether a hand-over is welcome, and at what price.
func (m *Machine) admits(h policies.Migration) (policies.Bid, bool) {
	if h.Length < 0 || len(m.wins) >= m.c.MaxWins || !m.position.Fits(h.Length) {
		return policies.Bid{}, false
	}
	return m.c.Quoter.Quote(m.position, h)
}

// bid answers an ask.
func (m *Machine) bid(msg Message) {
	m.rank(msg)
	b, ok := m.admits(msg.Migration)
	if !ok {
		m.tell(NoBid, msg.From, msg.Deal)
		return
	}
	m.send(Message{Kind: Bid, To: msg.From, Deal: msg.Deal, Load: b.Load, Start: b.Start})
}

// rank takes note of a seller's load.
func (m *Machine) rank(msg Message) {
	for _, w := range m.wins {
		if w.deal.Seller == msg.From {
			w.priority = msg.Load
		}
	}
}

// confirmed begins a win, if there is still room.
func (m *Machine) confirmed(msg Message) {
	m.rank(msg)
	if w := m.win(msg.Deal); w != nil {
		// The answer was lost, or the Confirm came twice.
		switch w.state {
		case queued:
			m.tell(Accept, msg.From, msg.Deal)
		case pulling:
			m.tell(Pull, msg.From, msg.Deal)
		}
		return
	}
	if _, ok := m.admits(msg.Migration); !ok {
		m.tell(Reject, msg.From, msg.Deal)
		return
	}
	w := &win{deal: msg.Deal, handover: msg.Migration, priority: msg.Load, deadline: m.now + m.c.Lease}
	m.wins = append(m.wins, w)
	m.position.Incoming += w.handover.Length
	m.out = append(m.out, Action{Kind: Reserve, Deal: w.deal, Peer: msg.From, Migration: w.handover, Deadline: w.deadline})
}

// reserved accepts; with a free slot the Pull says so.
func (m *Machine) reserved(d Deal) {
	w := m.win(d)
	if w == nil || w.state != reserving {
		return
	}
	w.state = queued
	m.pull()
	if w.state == queued {
		m.tell(Accept, d.Seller, d)
	}
}

// refused gives a win up for which there is no KV.
func (m *Machine) refused(d Deal) {
	w := m.win(d)
	if w == nil || w.state == importing {
		return
	}
	if w.state == reserving {
		m.tell(Reject, d.Seller, d)
	} else {
		m.tell(Drop, d.Seller, d)
	}
	m.lose(w)
}

// pull fills the free slots, the greatest sellers first. Those that were busy
// a moment ago and those that have promised are left alone.
func (m *Machine) pull() {
	for m.receiving < m.c.MaxConcurrentReceives {
		var best *win
		for _, w := range m.wins {
			if w.state != queued || w.promise != 0 || w.retry > m.now {
				continue
			}
			if best == nil || w.first && !best.first || w.first == best.first && w.priority > best.priority {
				best = w
			}
		}
		if best == nil {
			return
		}
		m.attempt(best)
	}
}

// attempt takes a slot and asks the seller for its own.
func (m *Machine) attempt(w *win) {
	m.receiving++
	w.state, w.answer, w.promise = pulling, m.now+m.c.AnswerTimeout, 0
	m.tell(Pull, w.deal.Seller, w.deal)
}

// skipped goes on without a busy seller, or says that it was busy too often.
func (m *Machine) skipped(w *win) {
	m.receiving--
	w.state, w.answer, w.retry = queued, 0, m.now+m.c.RetryDelay
	w.skips++
	if w.skips >= m.c.MaxSkips {
		w.promise = m.now + m.c.PromiseTimeout
		m.tell(Starving, w.deal.Seller, w.deal)
	}
}

// granted begins the transfer. A Grant that comes after its Pull was given up
// still counts: the seller holds a slot for it.
func (m *Machine) granted(w *win) {
	switch w.state {
	case queued:
		if m.receiving >= m.c.MaxConcurrentReceives {
			w.first, w.retry, w.promise = true, 0, 0
			return
		}
		m.receiving++
	case pulling:
	default:
		return
	}
	w.state, w.answer, w.promise, w.deadline = importing, 0, 0, m.now+m.c.TransferTimeout
	m.out = append(m.out, Action{Kind: Import, Deal: w.deal, Peer: w.deal.Seller, Migration: w.handover, Deadline: w.deadline})
}

// ready answers a seller that holds a slot.
func (m *Machine) ready(w *win) {
	if w.state != queued {
		return // a Pull is on its way and finds the slot
	}
	if m.receiving >= m.c.MaxConcurrentReceives {
		w.first, w.retry, w.promise = true, 0, 0
		m.tell(Pass, w.deal.Seller, w.deal)
		return
	}
	m.attempt(w)
}

// imported takes note of the end of a transfer.
func (m *Machine) imported(d Deal, end EventKind) {
	w := m.win(d)
	if w == nil || w.state != importing {
		return
	}
	if end == TransferFailed {
		m.release(w)
		return
	}
	// Until it is measured, what has come counts as held.
	m.position.Held += w.handover.Length
	m.lose(w)
}

// buyerGone ends what depended on a seller.
func (m *Machine) buyerGone(peer policies.ReplicaID) {
	for _, w := range slices.Clone(m.wins) {
		switch {
		case w.deal.Seller != peer:
		case w.state == importing:
			m.stop(w)
		default:
			m.release(w)
		}
	}
}

// expireWins enforces the buyer's deadlines.
func (m *Machine) expireWins() {
	for _, w := range slices.Clone(m.wins) {
		switch {
		case m.due(w.deadline) && w.state == importing:
			m.stop(w)
		case m.due(w.deadline):
			m.tell(Drop, w.deal.Seller, w.deal)
			m.release(w)
		case m.due(w.answer):
			m.skipped(w)
		case m.due(w.promise):
			w.promise, w.skips = 0, 0
		}
	}
}

// stop asks the transfer layer to stop, once. It still decides.
func (m *Machine) stop(w *win) {
	if w.deadline != 0 {
		w.deadline = 0
		m.out = append(m.out, Action{Kind: Abort, Deal: w.deal, Peer: w.deal.Seller})
	}
}

// release forgets a win and frees what was reserved for it.
func (m *Machine) release(w *win) {
	m.out = append(m.out, Action{Kind: Release, Deal: w.deal, Peer: w.deal.Seller})
	m.lose(w)
}

// lose forgets a win and frees its slot.
func (m *Machine) lose(w *win) {
	if w.state == pulling || w.state == importing {
		m.receiving--
	}
	m.position.Incoming -= w.handover.Length
	m.wins = slices.DeleteFunc(m.wins, func(o *win) bool { return o == w })
}
