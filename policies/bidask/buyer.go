package bidask

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// A winState is the state of a win.
type winState uint8

const (
	reserving winState = iota // the engine was asked to reserve KV
	queued                    // waits for a free receive slot
	pulling                   // holds a receive slot, waits for the seller's answer
	importing                 // the transfer layer decides how it ends
)

// win is the buyer's side of a deal.
type win struct {
	deal            Deal
	migration       policies.Migration
	priority        policies.Tokens // the seller's load
	state           winState
	skips           int             // how often the seller was busy
	atFront         bool            // a promised send slot found no free receive slot: it comes first
	retryAt         policies.Micros // queued: not before this time
	answerDeadline  policies.Micros // pulling: of the seller's answer
	promiseDeadline policies.Micros // queued: of the expected Ready; 0: none is expected
	deadline        policies.Micros // of the reservation, then of the transfer; 0: passed
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

// quote returns the replica's bid for a migration; false if it makes none.
func (m *Machine) quote(h policies.Migration) (policies.Bid, bool) {
	if h.Length < 0 || len(m.wins) >= m.config.MaxWins || !m.occupancy.Fits(h.Length) {
		return policies.Bid{}, false
	}
	if balances := h.Cause == policies.Spill || h.Cause == policies.Outlier || h.Cause == policies.Cheaper; balances &&
		m.occupancy.Load()+h.Length > m.occupancy.Capacity/100*policies.Tokens(m.config.BalancePercent) {
		return policies.Bid{}, false
	}
	if h.Cause == policies.Cheaper && m.buysCheaper(h.Request) {
		return policies.Bid{}, false
	}
	return m.config.Quoter.Quote(m.occupancy, h)
}

// buysCheaper reports whether another request comes here because it costs less here. One at a time: sellers do not
// know of each other's moves.
func (m *Machine) buysCheaper(request string) bool {
	return slices.ContainsFunc(m.wins, func(w *win) bool {
		return w.migration.Cause == policies.Cheaper && w.migration.Request != request
	})
}

// answerAsk replies to an ask with a bid or with NoBid.
func (m *Machine) answerAsk(msg Message) {
	m.updatePriority(msg)
	b, ok := m.quote(msg.Migration)
	if !ok {
		m.sendTo(NoBid, msg.From, msg.Deal)
		return
	}
	m.send(Message{Kind: Bid, To: msg.From, Deal: msg.Deal, Load: b.Load, Start: b.Start})
}

// updatePriority records a seller's load.
func (m *Machine) updatePriority(msg Message) {
	for _, w := range m.wins {
		if w.deal.Seller == msg.From {
			w.priority = msg.Load
		}
	}
}

// handleConfirm starts a win if there is still room for it.
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

// handleReserved accepts the deal; if a receive slot is free, the Pull says so.
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

// handleRefused drops a win for which the engine has no KV.
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

// startPulls fills the free receive slots, sellers with the greatest load first. It
// skips sellers that were busy a moment ago or have promised a slot.
func (m *Machine) startPulls() {
	for m.receiving < m.config.MaxConcurrentReceives && !m.waitsForPromise() {
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

// waitsForPromise reports whether no pull may start before a promised slot comes.
func (m *Machine) waitsForPromise() bool {
	return m.config.WaitForPromise && slices.ContainsFunc(m.wins, func(w *win) bool { return w.promiseDeadline != 0 })
}

// startPull takes a receive slot and asks the seller for a send slot.
func (m *Machine) startPull(w *win) {
	m.receiving++
	w.state, w.answerDeadline, w.promiseDeadline = pulling, m.now+m.config.AnswerTimeout, 0
	m.sendTo(Pull, w.deal.Seller, w.deal)
}

// handleBusy requeues a win whose seller is busy; after MaxSkips times it sends
// Starving.
func (m *Machine) handleBusy(w *win) {
	m.receiving--
	w.state, w.answerDeadline, w.retryAt = queued, 0, m.now+m.config.RetryDelay
	w.skips++
	// A buyer that waits does so for one promise: replicas that wait for several at once
	// could wait for each other.
	if w.skips >= m.config.MaxSkips && !m.waitsForPromise() {
		w.promiseDeadline = m.now + m.config.PromiseTimeout
		m.sendTo(Starving, w.deal.Seller, w.deal)
	}
}

// handleGrant starts the transfer. A Grant that arrives after its Pull timed out still
// counts, because the seller holds a slot for it.
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
		return // the Pull under way will find the slot
	}
	if m.receiving >= m.config.MaxConcurrentReceives {
		w.atFront, w.retryAt, w.promiseDeadline = true, 0, 0
		m.sendTo(Pass, w.deal.Seller, w.deal)
		return
	}
	m.startPull(w)
}

// finishImport handles the end of a transfer.
func (m *Machine) finishImport(d Deal, end EventKind) {
	w := m.winOfDeal(d)
	if w == nil || w.state != importing {
		return
	}
	if end == TransferFailed {
		m.releaseWin(w)
		return
	}
	// Until the next measurement, the request counts as held.
	m.occupancy.Held += w.migration.Length
	m.removeWin(w)
}

// abandonWinsFrom ends the wins whose seller is gone. They are dropped with a message: a process that was started in
// place of the seller may have sold them already.
func (m *Machine) abandonWinsFrom(peer policies.ReplicaID) {
	for _, w := range slices.Clone(m.wins) {
		switch {
		case w.deal.Seller != peer:
		case w.state == importing:
			m.abortImport(w)
		default:
			m.dropWin(w)
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
			m.dropWin(w)
		case m.isPast(w.answerDeadline):
			m.handleBusy(w)
		case m.isPast(w.promiseDeadline):
			w.promiseDeadline, w.skips = 0, 0
		}
	}
}

// abortImport asks the transfer layer once to abort. The transfer layer still decides
// how the transfer ends.
func (m *Machine) abortImport(w *win) {
	if w.deadline != 0 {
		w.deadline = 0
		m.out = append(m.out, Action{Kind: Abort, Deal: w.deal, Peer: w.deal.Seller})
	}
}

// dropWin is releaseWin for a win that its seller still counts on.
func (m *Machine) dropWin(w *win) {
	m.sendTo(Drop, w.deal.Seller, w.deal)
	m.releaseWin(w)
}

// releaseWin removes a win and frees its reservation.
func (m *Machine) releaseWin(w *win) {
	m.out = append(m.out, Action{Kind: Release, Deal: w.deal, Peer: w.deal.Seller})
	m.removeWin(w)
}

// removeWin removes a win and frees its slot.
func (m *Machine) removeWin(w *win) {
	if w.state == pulling || w.state == importing {
		m.receiving--
	}
	m.occupancy.Incoming -= w.migration.Length
	m.wins = slices.DeleteFunc(m.wins, func(o *win) bool { return o == w })
}
