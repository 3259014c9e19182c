package bidask

import (
	"cmp"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// A saleState is the state of a sale.
type saleState uint8

const (
	waitingToAsk saleState = iota // another sale of this seller is asking for bids
	awaitingBids                  // the candidates were asked for bids
	confirming                    // the best bidder was asked to confirm
	accepted                      // the buyer has reserved KV and will pull
	exporting                     // the transfer layer decides how it ends
)

// sale is the seller's side of a deal.
type sale struct {
	deal            Deal
	migration       policies.Migration
	state           saleState
	candidates      []policies.ReplicaID // the replicas to ask
	costs           []policies.Micros    // of a transfer to each of them; nil if all are equal
	buyer           policies.ReplicaID   // from confirming on
	deadline        policies.Micros      // of the state; 0: none, or passed
	holdDeadline    policies.Micros      // of the send slot held for a Ready; 0: none is held
	promiseDeadline policies.Micros      // of the promised send slot; 0: none is promised
	abortReason     ReturnReason         // exporting: why it was aborted
}

// addSale offers a request for sale, unless it is for sale already.
func (m *Machine) addSale(ev Event) {
	if m.saleOfRequest(ev.Migration.Request) != nil {
		return
	}
	s := &sale{deal: Deal{m.config.Self, m.number}, migration: ev.Migration}
	m.number++
	s.candidates, s.costs = m.chooseCandidates(ev)
	if len(s.candidates) == 0 {
		m.emitReturn(s, ReturnNoCandidates)
		return
	}
	m.sales = append(m.sales, s)
	m.offeredTokens += s.migration.Length
}

// saleOfRequest finds the sale of a request.
func (m *Machine) saleOfRequest(request string) *sale {
	for _, s := range m.sales {
		if s.migration.Request == request {
			return s
		}
	}
	return nil
}

// saleOfDeal finds the sale of a deal.
func (m *Machine) saleOfDeal(d Deal) *sale {
	at, found := slices.BinarySearchFunc(m.sales, d.Number, func(s *sale, n uint64) int { return cmp.Compare(s.deal.Number, n) })
	if !found {
		return nil
	}
	return m.sales[at]
}

// startAsk sends the ask of the next waiting sale if no ask is outstanding.
func (m *Machine) startAsk() {
	if m.asking != nil {
		return
	}
	for _, s := range m.sales {
		if s.state != waitingToAsk {
			continue
		}
		m.asking, m.unanswered, m.bids = s, append(m.unanswered[:0], s.candidates...), m.bids[:0]
		s.state, s.deadline = awaitingBids, m.now+m.config.BidTimeout
		for _, c := range m.unanswered {
			m.send(Message{Kind: Ask, To: c, Deal: s.deal, Migration: s.migration, Load: m.offeredTokens})
		}
		return
	}
}

// confirmNext confirms the best remaining bidder, or returns the sale for the given
// reason.
func (m *Machine) confirmNext(s *sale, none ReturnReason) {
	at := -1
	if len(m.bids) > 0 {
		at = m.selectBid(s)
	}
	if at < 0 || at >= len(m.bids) {
		m.returnSale(s, none)
		return
	}
	s.buyer, s.state, s.deadline = m.bids[at].From, confirming, m.now+m.config.AnswerTimeout
	m.bids = slices.Delete(m.bids, at, at+1)
	m.send(Message{Kind: Confirm, To: s.buyer, Deal: s.deal, Migration: s.migration, Load: m.offeredTokens})
}

// handleFromBuyer handles a message about one of the replica's own sales.
func (m *Machine) handleFromBuyer(msg Message) {
	s := m.saleOfDeal(msg.Deal)
	if s == nil || s.buyer != msg.From {
		switch msg.Kind {
		case Bid, NoBid:
			if s != nil && s.state == awaitingBids {
				m.recordBid(s, msg)
			}
		case Accept, Pull, Starving: // of a Confirm that was cancelled
			m.sendTo(Cancel, msg.From, msg.Deal)
		}
		return
	}
	switch msg.Kind {
	case Reject:
		if s.state == confirming {
			m.confirmNext(s, ReturnRejected)
		}
	case Accept:
		m.markAccepted(s)
	case Pull:
		m.markAccepted(s)
		m.handlePull(s)
	case Starving:
		m.markAccepted(s)
		switch {
		case s.state == exporting:
			m.sendTo(Grant, s.buyer, s.deal)
		case s.promiseDeadline == 0 && s.holdDeadline == 0:
			s.promiseDeadline = m.now + m.config.PromiseTimeout
			m.promised = append(m.promised, s)
		}
	case Pass:
		m.releaseHold(s)
	case Drop:
		switch s.state {
		case confirming:
			m.confirmNext(s, ReturnRejected)
		case accepted:
			m.returnSale(s, ReturnDropped)
		case exporting:
			m.abortExport(s, ReturnDropped)
		}
	}
}

// recordBid records an answer to the ask; the last answer closes the ask.
func (m *Machine) recordBid(s *sale, msg Message) {
	at := slices.Index(m.unanswered, msg.From)
	if at < 0 {
		return
	}
	m.unanswered = slices.Delete(m.unanswered, at, at+1)
	if msg.Kind == Bid {
		m.bids = append(m.bids, policies.Bid{From: msg.From, Load: msg.Load, Start: msg.Start})
	}
	if len(m.unanswered) == 0 {
		m.confirmNext(s, ReturnNoBids)
	}
}

// markAccepted records that the buyer has reserved KV. The buyer's lease started earlier
// than this deadline, which only covers a buyer that stops answering.
func (m *Machine) markAccepted(s *sale) {
	if s.state == confirming {
		s.state, s.deadline = accepted, m.now+m.config.Lease+m.config.AnswerTimeout
		m.asking = nil
	}
}

// handlePull starts the transfer if a send slot is free. It never waits for one.
func (m *Machine) handlePull(s *sale) {
	switch {
	case s.state == exporting: // the Grant was lost, or the Pull came twice
	case s.holdDeadline != 0:
		s.holdDeadline = 0
		m.startExport(s)
	case m.sending < m.config.MaxConcurrentSends:
		m.sending++
		m.startExport(s)
	default:
		m.sendTo(Busy, s.buyer, s.deal)
		return
	}
	m.sendTo(Grant, s.buyer, s.deal)
}

// startExport passes the sale, which holds a send slot, to the transfer layer.
func (m *Machine) startExport(s *sale) {
	m.dropPromise(s)
	s.state, s.deadline = exporting, m.now+m.config.TransferTimeout
	m.out = append(m.out, Action{Kind: Export, Deal: s.deal, Peer: s.buyer, Migration: s.migration, Deadline: s.deadline})
}

// finishExport handles the end of a transfer.
func (m *Machine) finishExport(d Deal, end EventKind) {
	s := m.saleOfDeal(d)
	if s == nil || s.state != exporting {
		return
	}
	if end == TransferFailed {
		m.returnSale(s, cmp.Or(s.abortReason, ReturnTransferFailed))
		return
	}
	m.occupancy.Held = max(0, m.occupancy.Held-s.migration.Length)
	m.removeSale(s)
}

// keepPromises gives free send slots to the sales that were promised one.
func (m *Machine) keepPromises() {
	for len(m.promised) > 0 && m.sending < m.config.MaxConcurrentSends {
		s := m.promised[0]
		m.dropPromise(s)
		m.sending++
		s.holdDeadline = m.now + m.config.AnswerTimeout
		m.sendTo(Ready, s.buyer, s.deal)
	}
}

// releaseHold frees a slot that was held for a Ready.
func (m *Machine) releaseHold(s *sale) {
	if s.holdDeadline != 0 {
		s.holdDeadline = 0
		m.sending--
	}
}

// dropPromise withdraws the promise of a send slot.
func (m *Machine) dropPromise(s *sale) {
	if s.promiseDeadline != 0 {
		s.promiseDeadline = 0
		m.promised = slices.DeleteFunc(m.promised, func(o *sale) bool { return o == s })
	}
}

// withdraw ends the sale of a request; once it is exporting, it only asks the transfer
// layer to abort.
func (m *Machine) withdraw(request string) {
	s := m.saleOfRequest(request)
	if s == nil {
		return
	}
	switch s.state {
	case confirming, accepted:
		m.sendTo(Cancel, s.buyer, s.deal)
	case exporting:
		m.abortExport(s, ReturnWithdrawn)
		return
	}
	m.returnSale(s, ReturnWithdrawn)
}

// abandonSalesTo ends the sales to a buyer that is gone.
func (m *Machine) abandonSalesTo(peer policies.ReplicaID) {
	if s := m.asking; s != nil {
		m.bids = slices.DeleteFunc(m.bids, func(b policies.Bid) bool { return b.From == peer })
		switch {
		case s.state == confirming && s.buyer == peer:
			m.confirmNext(s, ReturnRejected)
		case s.state == awaitingBids:
			m.recordBid(s, Message{Kind: NoBid, From: peer})
		}
	}
	for _, s := range slices.Clone(m.sales) {
		switch {
		case s.buyer != peer:
		case s.state == accepted:
			m.returnSale(s, ReturnPeerGone)
		case s.state == exporting:
			m.abortExport(s, ReturnPeerGone)
		}
	}
}

// expireSales enforces the seller's deadlines.
func (m *Machine) expireSales() {
	for _, s := range slices.Clone(m.sales) {
		if m.isPast(s.holdDeadline) {
			m.releaseHold(s)
		}
		if m.isPast(s.promiseDeadline) {
			m.dropPromise(s)
		}
		if !m.isPast(s.deadline) {
			continue
		}
		switch s.state {
		case awaitingBids:
			m.confirmNext(s, ReturnNoBids)
		case confirming:
			m.sendTo(Cancel, s.buyer, s.deal)
			m.confirmNext(s, ReturnRejected)
		case accepted:
			m.sendTo(Cancel, s.buyer, s.deal)
			m.returnSale(s, ReturnExpired)
		case exporting:
			m.abortExport(s, ReturnExpired)
		}
	}
}

// abortExport asks the transfer layer once to abort. The transfer layer still decides
// how the transfer ends.
func (m *Machine) abortExport(s *sale, why ReturnReason) {
	if s.deadline != 0 {
		s.deadline, s.abortReason = 0, why
		m.out = append(m.out, Action{Kind: Abort, Deal: s.deal, Peer: s.buyer})
	}
}

// returnSale removes a sale and returns its request.
func (m *Machine) returnSale(s *sale, why ReturnReason) {
	m.removeSale(s)
	m.emitReturn(s, why)
}

func (m *Machine) emitReturn(s *sale, why ReturnReason) {
	m.out = append(m.out, Action{Kind: Return, Deal: s.deal, Migration: s.migration, Reason: why})
}

// removeSale removes a sale and frees its slot and promise.
func (m *Machine) removeSale(s *sale) {
	m.dropPromise(s)
	m.releaseHold(s)
	if s.state == exporting {
		m.sending--
	}
	if m.asking == s {
		m.asking = nil
	}
	m.offeredTokens -= s.migration.Length
	m.sales = slices.DeleteFunc(m.sales, func(o *sale) bool { return o == s })
}
