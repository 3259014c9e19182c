package bidask

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// A stand is where a sale stands.
type stand uint8

const (
	waiting    stand = iota // for the one ask to be free
	asked                   // bids are coming in
	confirming              // the buyer's answer is awaited
	sold                    // the buyer has reserved and will pull
	exporting               // the transfer has the word
)

// sale is the seller's side of a deal.
type sale struct {
	deal       Deal
	handover   policies.Migration
	stand      stand
	candidates []policies.ReplicaID // waiting: whom to ask
	asked      []policies.ReplicaID // whom costs are of; nil without costs
	costs      []policies.Micros    // of a transfer to each of them
	buyer      policies.ReplicaID   // confirming and after
	deadline   policies.Micros      // of the stand; 0: none, or passed
	hold       policies.Micros      // until when a slot is held for a Ready; 0: none is
	promise    policies.Micros      // until when a slot is promised; 0: none is
	why        ReturnReason         // exporting: why it was aborted
}

// offer puts a request up for sale. What is for sale already stays as it is.
func (m *Machine) offer(ev Event) {
	if m.selling(ev.Migration.Request) != nil {
		return
	}
	s := &sale{deal: Deal{m.c.Self, m.number}, handover: ev.Migration}
	m.number++
	if len(m.sales) >= m.c.MaxOffers {
		m.giveBack(s, ReturnTooManyOffers)
		return
	}
	s.candidates, s.costs = m.draw(ev)
	if s.costs != nil {
		s.asked = s.candidates
	}
	if len(s.candidates) == 0 {
		m.giveBack(s, ReturnNoCandidates)
		return
	}
	m.sales = append(m.sales, s)
	m.offered += s.handover.Length
}

// selling finds the sale of a request.
func (m *Machine) selling(request string) *sale {
	for _, s := range m.sales {
		if s.handover.Request == request {
			return s
		}
	}
	return nil
}

// sale finds the sale of a deal.
func (m *Machine) sale(d Deal) *sale {
	at, found := slices.BinarySearchFunc(m.sales, d.Number, func(s *sale, n uint64) int {
		switch {
		case s.deal.Number < n:
			return -1
		case s.deal.Number > n:
			return 1
		}
		return 0
	})
	if !found {
		return nil
	}
	return m.sales[at]
}

// ask begins the next ask when none is out.
func (m *Machine) ask() {
	if m.asking != nil {
		return
	}
	for _, s := range m.sales {
		if s.stand != waiting {
			continue
		}
		m.asking, m.silent, m.bids = s, append(m.silent[:0], s.candidates...), m.bids[:0]
		s.stand, s.candidates, s.deadline = asked, nil, m.now+m.c.BidTimeout
		for _, c := range m.silent {
			m.send(Message{Kind: Ask, To: c, Deal: s.deal, Migration: s.handover, Load: m.offered})
		}
		return
	}
}

// choose confirms the best bidder left, or gives the sale up.
func (m *Machine) choose(s *sale, none ReturnReason) {
	at := -1
	if len(m.bids) > 0 {
		at = m.pick(s)
	}
	if at < 0 || at >= len(m.bids) {
		m.end(s, none)
		return
	}
	s.buyer, s.stand, s.deadline = m.bids[at].From, confirming, m.now+m.c.AnswerTimeout
	m.bids = slices.Delete(m.bids, at, at+1)
	m.send(Message{Kind: Confirm, To: s.buyer, Deal: s.deal, Migration: s.handover, Load: m.offered})
}

// hearBuyer handles a message about an own sale.
func (m *Machine) hearBuyer(msg Message) {
	s := m.sale(msg.Deal)
	if s == nil || s.buyer != msg.From {
		switch msg.Kind {
		case Bid, NoBid:
			if s != nil && s.stand == asked {
				m.hearBid(s, msg)
			}
		case Accept, Pull, Starving: // of a Confirm that was cancelled
			m.tell(Cancel, msg.From, msg.Deal)
		}
		return
	}
	switch msg.Kind {
	case Reject:
		if s.stand == confirming {
			m.choose(s, ReturnRejected)
		}
	case Accept:
		m.settle(s)
	case Pull:
		m.settle(s)
		m.hearPull(s)
	case Starving:
		m.settle(s)
		switch {
		case s.stand == exporting:
			m.tell(Grant, s.buyer, s.deal)
		case s.promise == 0 && s.hold == 0:
			s.promise = m.now + m.c.PromiseTimeout
			m.promised = append(m.promised, s)
		}
	case Pass:
		m.letGo(s)
	case Drop:
		switch s.stand {
		case confirming:
			m.choose(s, ReturnRejected)
		case sold:
			m.end(s, ReturnDropped)
		case exporting:
			m.abort(s, ReturnDropped)
		}
	}
}

// hearBid counts an answer to the ask; the last one closes it.
func (m *Machine) hearBid(s *sale, msg Message) {
	at := slices.Index(m.silent, msg.From)
	if at < 0 {
		return
	}
	m.silent = slices.Delete(m.silent, at, at+1)
	if msg.Kind == Bid {
		m.bids = append(m.bids, policies.Bid{From: msg.From, Load: msg.Load, Start: msg.Start})
	}
	if len(m.silent) == 0 {
		m.choose(s, ReturnNoBids)
	}
}

// settle takes note that the buyer has reserved. The lease is the buyer's; it
// began before this one, which only covers a buyer that says no more.
func (m *Machine) settle(s *sale) {
	if s.stand == confirming {
		s.stand, s.deadline = sold, m.now+m.c.Lease+m.c.AnswerTimeout
		m.asking = nil
	}
}

// hearPull begins the transfer when there is a slot. It never waits for one.
func (m *Machine) hearPull(s *sale) {
	switch {
	case s.stand == exporting: // the Grant was lost, or the Pull came twice
	case s.hold != 0:
		s.hold = 0
		m.export(s)
	case m.sending < m.c.MaxConcurrentSends:
		m.sending++
		m.export(s)
	default:
		m.tell(Busy, s.buyer, s.deal)
		return
	}
	m.tell(Grant, s.buyer, s.deal)
}

// export hands the sale to the transfer layer; its slot is taken.
func (m *Machine) export(s *sale) {
	m.forget(s)
	s.stand, s.deadline = exporting, m.now+m.c.TransferTimeout
	m.out = append(m.out, Action{Kind: Export, Deal: s.deal, Peer: s.buyer, Migration: s.handover, Deadline: s.deadline})
}

// exported takes note of the end of a transfer.
func (m *Machine) exported(d Deal, end EventKind) {
	s := m.sale(d)
	if s == nil || s.stand != exporting {
		return
	}
	if end == TransferFailed {
		if s.why == 0 {
			s.why = ReturnTransferFailed
		}
		m.end(s, s.why)
		return
	}
	m.position.Held = max(0, m.position.Held-s.handover.Length)
	m.remove(s)
}

// keepPromises holds free slots for those that were promised one.
func (m *Machine) keepPromises() {
	for len(m.promised) > 0 && m.sending < m.c.MaxConcurrentSends {
		s := m.promised[0]
		m.forget(s)
		m.sending++
		s.hold = m.now + m.c.AnswerTimeout
		m.tell(Ready, s.buyer, s.deal)
	}
}

// letGo frees a slot that was held for a Ready.
func (m *Machine) letGo(s *sale) {
	if s.hold != 0 {
		s.hold = 0
		m.sending--
	}
}

// forget drops the promise to a sale.
func (m *Machine) forget(s *sale) {
	if s.promise != 0 {
		s.promise = 0
		m.promised = slices.DeleteFunc(m.promised, func(o *sale) bool { return o == s })
	}
}

// withdraw ends the sale of a request, unless its transfer has the word.
func (m *Machine) withdraw(request string) {
	s := m.selling(request)
	if s == nil {
		return
	}
	switch s.stand {
	case confirming, sold:
		m.tell(Cancel, s.buyer, s.deal)
	case exporting:
		m.abort(s, ReturnWithdrawn)
		return
	}
	m.end(s, ReturnWithdrawn)
}

// sellerGone ends what depended on a buyer.
func (m *Machine) sellerGone(peer policies.ReplicaID) {
	if s := m.asking; s != nil {
		m.bids = slices.DeleteFunc(m.bids, func(b policies.Bid) bool { return b.From == peer })
		switch {
		case s.stand == confirming && s.buyer == peer:
			m.choose(s, ReturnRejected)
		case s.stand == asked:
			m.hearBid(s, Message{Kind: NoBid, From: peer})
		}
	}
	for _, s := range slices.Clone(m.sales) {
		switch {
		case s.buyer != peer:
		case s.stand == sold:
			m.end(s, ReturnPeerGone)
		case s.stand == exporting:
			m.abort(s, ReturnPeerGone)
		}
	}
}

// expireSales enforces the seller's deadlines.
func (m *Machine) expireSales() {
	for _, s := range slices.Clone(m.sales) {
		if m.due(s.hold) {
			m.letGo(s)
		}
		if m.due(s.promise) {
			m.forget(s)
		}
		if !m.due(s.deadline) {
			continue
		}
		switch s.stand {
		case asked:
			m.choose(s, ReturnNoBids)
		case confirming:
			m.tell(Cancel, s.buyer, s.deal)
			m.choose(s, ReturnRejected)
		case sold:
			m.tell(Cancel, s.buyer, s.deal)
			m.end(s, ReturnExpired)
		case exporting:
			m.abort(s, ReturnExpired)
		}
	}
}

// abort asks the transfer layer to stop, once. It still decides.
func (m *Machine) abort(s *sale, why ReturnReason) {
	if s.deadline != 0 {
		s.deadline, s.why = 0, why
		m.out = append(m.out, Action{Kind: Abort, Deal: s.deal, Peer: s.buyer})
	}
}

// end gives a sale back.
func (m *Machine) end(s *sale, why ReturnReason) {
	m.remove(s)
	m.giveBack(s, why)
}

func (m *Machine) giveBack(s *sale, why ReturnReason) {
	m.out = append(m.out, Action{Kind: Return, Deal: s.deal, Migration: s.handover, Reason: why})
}

// remove forgets a sale and frees what it holds.
func (m *Machine) remove(s *sale) {
	m.forget(s)
	m.letGo(s)
	if s.stand == exporting {
		m.sending--
	}
	if m.asking == s {
		m.asking = nil
	}
	m.offered -= s.handover.Length
	m.sales = slices.DeleteFunc(m.sales, func(o *sale) bool { return o == s })
}
