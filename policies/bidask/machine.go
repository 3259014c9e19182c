package bidask

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// Machine is one replica's part in the market. It is not safe for concurrent
// use.
type Machine struct {
	config Config
	now    policies.Micros
	out    []Action // of the Step in progress

	occupancy policies.Occupancy // as measured, with what has moved since; Incoming is the machine's own

	// Seller. Sales are in order of their numbers.
	sales            []*sale
	number           uint64 // of the next sale
	offeredTokens    policies.Tokens
	asking           *sale // the one in state asking or confirming, or nil
	unanswered       []policies.ReplicaID
	bids             []policies.Bid // in order of arrival
	undominated      []policies.Bid // scratch of pick
	undominatedIndex []int          // and where they are in bids
	sending          int            // send slots in use
	promised         []*sale        // to be served before anybody else, in order

	// Buyer. Wins are in order of arrival.
	wins      []*win
	receiving int // receive slots in use
}

// New returns a machine that has nothing to sell and knows nothing of its own
// position: it bids after the first Measured. The error is a
// *policies.Violation that names the bad field.
func New(c Config) (*Machine, error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	return &Machine{config: c, number: c.FirstDeal}, nil
}

// Step takes note of an event and appends what is to be done about it to out,
// which it returns. Everything that the event names is copied.
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

// receive passes a message to the side that it is meant for.
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

// measure takes note of the own position. A replica that begins to drain gives
// up what it has won and not begun to pull.
func (m *Machine) measure(p policies.Occupancy) {
	p.Incoming = m.occupancy.Incoming
	m.occupancy = p
	if !p.Draining {
		return
	}
	for _, w := range slices.Clone(m.wins) {
		if w.state != importing {
			m.sendTo(Drop, w.deal.Seller, w.deal)
			m.releaseWin(w)
		}
	}
}

// Next returns when Step must be called with Ticked; false when no deadline is
// pending. It changes with every Step.
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
	for _, w := range m.wins {
		earlier(w.deadline)
		earlier(w.answerDeadline)
		earlier(w.promiseDeadline)
		if w.state == queued && w.promiseDeadline == 0 && m.receiving < m.config.MaxConcurrentReceives {
			earlier(w.retryAt)
		}
	}
	return next, any
}

// Idle reports whether nothing is offered, won or on its way.
func (m *Machine) Idle() bool { return len(m.sales) == 0 && len(m.wins) == 0 }

// Incoming is what was won and is not yet here: the KV that is reserved.
func (m *Machine) Incoming() policies.Tokens { return m.occupancy.Incoming }

// sendTo sends a message that carries nothing but the deal.
func (m *Machine) sendTo(k MessageKind, to policies.ReplicaID, d Deal) {
	m.send(Message{Kind: k, To: to, Deal: d})
}

func (m *Machine) send(msg Message) {
	msg.From = m.config.Self
	m.out = append(m.out, Action{Kind: Send, Message: msg})
}

// isPast reports whether a deadline has passed; 0 is none.
func (m *Machine) isPast(t policies.Micros) bool { return t != 0 && t <= m.now }
