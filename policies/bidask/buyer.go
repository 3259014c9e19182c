package bidask

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// A state is where a win is.
type winState uint8

const (
	reserving winState = iota // the engine is asked for KV
	queued                    // for a free receive slot
	pulling                   // a slot is held, the seller's answer is awaited
	importing                 // the transfer has the word
)

// win is the buyer's side of a deal.
type win struct {
	deal            Deal
	migration       policies.Migration
	priority        policies.Tokens // the seller's load
	state           winState
	skips           int             // how often the seller was busy
	atFront         bool            // a promise found no free slot: it goes before all others
	retryAt         policies.Micros // queued: not before
	answerDeadline  policies.Micros // pulling: until when
	promiseDeadline policies.Micros // queued: until when a Ready is expected; 0: none is
	deadline        policies.Micros // of the lease, then of the transfer; 0: passed
}

// winOfDeal finds the win of a deal.
func (m *Machine) winOfDeal(d Deal) *win {
	for _, w := range m.wins {
		if w.deal == d {
			return w
		}
	}
	return nil
}

// handleFromSeller handles a message about another replica's sale.
func (m *Machine) handleFromSeller(msg Message) {
	switch msg.Kind {
	case Ask:
		m.answerAsk(msg)
		return
	case Confirm:
		m.handleConfirm(msg)
		return
	}
	w := m.winOfDeal(msg.Deal)
	if w == nil {
		if msg.Kind == Grant || msg.Kind == Ready {
			m.sendTo(Drop, msg.From, msg.Deal)
		}
		return
	}
	switch msg.Kind {
	case Busy:
		if w.state == pulling {
			m.handleBusy(w)
		}
	case Grant:
		m.handleGrant(w)
	case Ready:
		m.handleReady(w)
	case Cancel:
		if w.state == importing {
			m.abortImport(w)
		} else {
			m.releaseWin(w)
		}
	}
}

// quote reports whether a hand-over is welcome, and at what price.
func (m *Machine) quote(h policies.Migration) (policies.Bid, bool) {
	if h.Length < 0 || len(m.wins) >= m.config.MaxWins || !m.occupancy.Fits(h.Length) {
		return policies.Bid{}, false
	}
	return m.config.Quoter.Quote(m.occupancy, h)
}

// answerAsk answers an ask.
func (m *Machine) answerAsk(msg Message) {
	m.updatePriority(msg)
	b, ok := m.quote(msg.Migration)
	if !ok {
		m.sendTo(NoBid, msg.From, msg.Deal)
		return
	}
	m.send(Message{Kind: Bid, To: msg.From, Deal: msg.Deal, Load: b.Load, Start: b.Start})
}

// updatePriority takes note of a seller's load.
func (m *Machine) updatePriority(msg Message) {
	for _, w := range m.wins {
		if w.deal.Seller == msg.From {
			w.priority = msg.Load
		}
	}
}

// handleConfirm begins a win, if there is still room.
func (m *Machine) handleConfirm(msg Message) {
	m.updatePriority(msg)
	if w := m.winOfDeal(msg.Deal); w != nil {
		// The answer was lost, or the Confirm came twice.
		switch w.state {
		case queued:
			m.sendTo(Accept, msg.From, msg.Deal)
		case pulling:
			m.sendTo(Pull, msg.From, msg.Deal)
		}
		return
	}
	if _, ok := m.quote(msg.Migration); !ok {
		m.sendTo(Reject, msg.From, msg.Deal)
		return
	}
	w := &win{deal: msg.Deal, migration: msg.Migration, priority: msg.Load, deadline: m.now + m.config.Lease}
	m.wins = append(m.wins, w)
	m.occupancy.Incoming += w.migration.Length
	m.out = append(m.out, Action{Kind: Reserve, Deal: w.deal, Peer: msg.From, Migration: w.migration, Deadline: w.deadline})
}

// handleReserved accepts; with a free slot the Pull says so.
func (m *Machine) handleReserved(d Deal) {
	w := m.winOfDeal(d)
	if w == nil || w.state != reserving {
		return
	}
	w.state = queued
	m.startPulls()
	if w.state == queued {
		m.sendTo(Accept, d.Seller, d)
	}
}

// handleRefused gives a win up for which there is no KV.
func (m *Machine) handleRefused(d Deal) {
	w := m.winOfDeal(d)
	if w == nil || w.state == importing {
		return
	}
	if w.state == reserving {
		m.sendTo(Reject, d.Seller, d)
	} else {
		m.sendTo(Drop, d.Seller, d)
	}
	m.removeWin(w)
}

// startPulls fills the free slots, the greatest sellers first. Those that were busy
// a moment ago and those that have promised are left alone.
func (m *Machine) startPulls() {
	for m.receiving < m.config.MaxConcurrentReceives {
		var best *win
		for _, w := range m.wins {
			if w.state != queued || w.promiseDeadline != 0 || w.retryAt > m.now {
				continue
			}
			if best == nil || w.atFront && !best.atFront || w.atFront == best.atFront && w.priority > best.priority {
				best = w
			}
		}
		if best == nil {
			return
		}
		m.startPull(best)
	}
}

// startPull takes a slot and asks the seller for its own.
func (m *Machine) startPull(w *win) {
	m.receiving++
	w.state, w.answerDeadline, w.promiseDeadline = pulling, m.now+m.config.AnswerTimeout, 0
	m.sendTo(Pull, w.deal.Seller, w.deal)
}

// handleBusy goes on without a busy seller, or says that it was busy too often.
func (m *Machine) handleBusy(w *win) {
	m.receiving--
	w.state, w.answerDeadline, w.retryAt = queued, 0, m.now+m.config.RetryDelay
	w.skips++
	if w.skips >= m.config.MaxSkips {
		w.promiseDeadline = m.now + m.config.PromiseTimeout
		m.sendTo(Starving, w.deal.Seller, w.deal)
	}
}

// handleGrant begins the transfer. A Grant that comes after its Pull was given up
// still counts: the seller holds a slot for it.
func (m *Machine) handleGrant(w *win) {
	switch w.state {
	case queued:
		if m.receiving >= m.config.MaxConcurrentReceives {
			w.atFront, w.retryAt, w.promiseDeadline = true, 0, 0
			return
		}
		m.receiving++
	case pulling:
	default:
		return
	}
	w.state, w.answerDeadline, w.promiseDeadline, w.deadline = importing, 0, 0, m.now+m.config.TransferTimeout
	m.out = append(m.out, Action{Kind: Import, Deal: w.deal, Peer: w.deal.Seller, Migration: w.migration, Deadline: w.deadline})
}

// handleReady answers a seller that holds a slot.
func (m *Machine) handleReady(w *win) {
	if w.state != queued {
		return // a Pull is on its way and finds the slot
	}
	if m.receiving >= m.config.MaxConcurrentReceives {
		w.atFront, w.retryAt, w.promiseDeadline = true, 0, 0
		m.sendTo(Pass, w.deal.Seller, w.deal)
		return
	}
	m.startPull(w)
}

// finishImport takes note of the end of a transfer.
func (m *Machine) finishImport(d Deal, end EventKind) {
	w := m.winOfDeal(d)
	if w == nil || w.state != importing {
		return
	}
	if end == TransferFailed {
		m.releaseWin(w)
		return
	}
	// Until it is measured, what has come counts as held.
	m.occupancy.Held += w.migration.Length
	m.removeWin(w)
}

// abandonWinsFrom ends what depended on a seller.
func (m *Machine) abandonWinsFrom(peer policies.ReplicaID) {
	for _, w := range slices.Clone(m.wins) {
		switch {
		case w.deal.Seller != peer:
		case w.state == importing:
			m.abortImport(w)
		default:
			m.releaseWin(w)
		}
	}
}

// expireWins enforces the buyer's deadlines.
func (m *Machine) expireWins() {
	for _, w := range slices.Clone(m.wins) {
		switch {
		case m.isPast(w.deadline) && w.state == importing:
			m.abortImport(w)
		case m.isPast(w.deadline):
			m.sendTo(Drop, w.deal.Seller, w.deal)
			m.releaseWin(w)
		case m.isPast(w.answerDeadline):
			m.handleBusy(w)
		case m.isPast(w.promiseDeadline):
			w.promiseDeadline, w.skips = 0, 0
		}
	}
}

// abortImport asks the transfer layer to stop, once. It still decides.
func (m *Machine) abortImport(w *win) {
	if w.deadline != 0 {
		w.deadline = 0
		m.out = append(m.out, Action{Kind: Abort, Deal: w.deal, Peer: w.deal.Seller})
	}
}

// releaseWin forgets a win and frees what was reserved for it.
func (m *Machine) releaseWin(w *win) {
	m.out = append(m.out, Action{Kind: Release, Deal: w.deal, Peer: w.deal.Seller})
	m.removeWin(w)
}

// removeWin forgets a win and frees its slot.
func (m *Machine) removeWin(w *win) {
	if w.state == pulling || w.state == importing {
		m.receiving--
	}
	m.occupancy.Incoming -= w.migration.Length
	m.wins = slices.DeleteFunc(m.wins, func(o *win) bool { return o == w })
}
