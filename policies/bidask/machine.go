package bidask

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// Machine is one replica's part in the market. It is not safe for concurrent
// use.
type Machine struct {
	config Rules
	now    policies.Micros
	out    []Action // of the Step in progress

	occupancy policies.Occupancy // as measured, updated by completed transfers; the machine computes Incoming

	// Seller. Sales are in order of their numbers.
	sales            []*sale
	number           uint64 // of the next sale
	offeredTokens    policies.Tokens
	asking           *sale // the sale in state awaitingBids or confirming, or nil
	unanswered       []policies.ReplicaID
	bids             []policies.Bid // in order of arrival
	undominated      []policies.Bid // scratch of selectBid
	undominatedIndex []int          // their indices in bids
	sending          int            // send slots in use
	promised         []*sale        // served before all other sales, in this order

	// Buyer. Wins are in order of arrival.
	wins      []*win
	receiving int // receive slots in use
}

// NewMachine returns a machine without sales and without a measured occupancy: it bids after
// the first OccupancyMeasured event. The error is a *policies.Violation that names
// the bad field.
func NewMachine(c Rules) (*Machine, error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	return &Machine{config: c, number: c.FirstDeal}, nil
}

// Step handles an event, appends the resulting actions to out and returns it. It keeps
// no reference to the event.
func (m *Machine) Step(ev Event, out []Action) []Action {
	m.out = out
	m.now = max(m.now, ev.Now)
	switch ev.Kind {
	case Offered:
		m.addSale(ev)
	case Withdrawn:
		m.withdraw(ev.Migration.Request)
	case MessageReceived:
		m.receive(ev.Message)
	case Reserved:
		m.handleReserved(ev.Deal)
	case ReservationRefused:
		m.handleRefused(ev.Deal)
	case TransferDone, TransferFailed:
		if ev.Deal.Seller == m.config.Self {
			m.finishExport(ev.Deal, ev.Kind)
		} else {
			m.finishImport(ev.Deal, ev.Kind)
		}
	case PeerGone:
		m.abandonSalesTo(ev.Peer)
		m.abandonWinsFrom(ev.Peer)
	case OccupancyMeasured:
		m.measure(ev.Occupancy)
	case DeadlineReached:
		m.expireSales()
		m.expireWins()
	}
	m.startAsk()
	m.keepPromises()
	m.startPulls()
	out, m.out = m.out, nil
	return out
}

// receive passes a message to the seller's or the buyer's side.
func (m *Machine) receive(msg Message) {
	if msg.From == "" || msg.From == m.config.Self || msg.To != m.config.Self {
		return
	}
	switch msg.Kind {
	case Bid, NoBid, Reject, Accept, Pull, Starving, Pass, Drop:
		if msg.Deal.Seller == m.config.Self {
			m.handleFromBuyer(msg)
		}
	case Ask, Confirm, Busy, Grant, Ready, Cancel:
		if msg.Deal.Seller == msg.From {
			m.handleFromSeller(msg)
		}
	}
}

// measure records the replica's occupancy. A replica that starts to drain drops the
// wins that it has not started to pull.
func (m *Machine) measure(p policies.Occupancy) {
	p.Incoming = m.occupancy.Incoming
	m.occupancy = p
	if !p.Draining {
		return
	}
	for _, w := range slices.Clone(m.wins) {
		if w.state != importing {
			m.dropWin(w)
		}
	}
}

// Next returns when Step must be called with DeadlineReached; false if no deadline is
// pending. It may change with every Step.
func (m *Machine) Next() (policies.Micros, bool) {
	next, any := policies.Micros(0), false
	earlier := func(t policies.Micros) {
		if t != 0 && (!any || t < next) {
			next, any = t, true
		}
	}
	for _, s := range m.sales {
		earlier(s.deadline)
		earlier(s.holdDeadline)
		earlier(s.promiseDeadline)
	}
	mayPull := m.receiving < m.config.MaxConcurrentReceives && !m.waitsForPromise()
	for _, w := range m.wins {
		earlier(w.deadline)
		earlier(w.answerDeadline)
		earlier(w.promiseDeadline)
		if w.state == queued && w.promiseDeadline == 0 && mayPull {
			earlier(w.retryAt)
		}
	}
	return next, any
}

// Incoming returns the KV reserved for requests that were won and have not arrived.
func (m *Machine) Incoming() policies.Tokens { return m.occupancy.Incoming }

// sendTo sends a message that has no fields besides the deal.
func (m *Machine) sendTo(k MessageKind, to policies.ReplicaID, d Deal) {
	m.send(Message{Kind: k, To: to, Deal: d})
}

func (m *Machine) send(msg Message) {
	msg.From = m.config.Self
	m.out = append(m.out, Action{Kind: Send, Message: msg})
}

// isPast reports whether a deadline has passed; 0 is none.
func (m *Machine) isPast(t policies.Micros) bool { return t != 0 && t <= m.now }
