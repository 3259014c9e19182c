package bidask

import (
	"fmt"

	"github.com/cascadeinfer/cascade/policies"
)

// Check recounts what a machine keeps totals of, and reports the first
// contradiction.
func (m *Machine) Check() error {
	var sending, receiving, promised int
	var offered, incoming policies.Tokens
	for i, s := range m.sales {
		if i > 0 && m.sales[i-1].deal.Number >= s.deal.Number {
			return fmt.Errorf("sales %v and %v are out of order", m.sales[i-1].deal, s.deal)
		}
		offered += s.handover.Length
		if s.stand == exporting || s.hold != 0 {
			sending++
		}
		if s.hold != 0 && s.stand != sold || s.promise != 0 && (s.stand != sold || s.hold != 0) {
			return fmt.Errorf("sale %v: hold %d and promise %d in stand %d", s.deal, s.hold, s.promise, s.stand)
		}
		if s.promise != 0 {
			promised++
		}
		if (s.stand == asked || s.stand == confirming) != (s == m.asking) {
			return fmt.Errorf("sale %v: stand %d, but the ask is another's", s.deal, s.stand)
		}
		if s.deadline == 0 && s.stand != waiting && s.stand != exporting {
			return fmt.Errorf("sale %v: no deadline in stand %d", s.deal, s.stand)
		}
		for _, o := range m.sales[:i] {
			if o.handover.Request == s.handover.Request {
				return fmt.Errorf("request %s is for sale twice", s.handover.Request)
			}
		}
	}
	for i, w := range m.wins {
		incoming += w.handover.Length
		if w.state == pulling || w.state == importing {
			receiving++
		}
		if w.deadline == 0 && w.state != importing || (w.answer != 0) != (w.state == pulling) || w.promise != 0 && w.state != queued {
			return fmt.Errorf("win %+v: deadlines", *w)
		}
		for _, o := range m.wins[:i] {
			if o.deal == w.deal {
				return fmt.Errorf("deal %v is won twice", w.deal)
			}
		}
	}
	switch {
	case sending != m.sending || sending > m.c.MaxConcurrentSends:
		return fmt.Errorf("%d send slots in use, %d counted, %d there", m.sending, sending, m.c.MaxConcurrentSends)
	case receiving != m.receiving || receiving > m.c.MaxConcurrentReceives:
		return fmt.Errorf("%d receive slots in use, %d counted, %d there", m.receiving, receiving, m.c.MaxConcurrentReceives)
	case offered != m.offered:
		return fmt.Errorf("offered %v, counted %v", m.offered, offered)
	case incoming != m.position.Incoming:
		return fmt.Errorf("incoming %v, counted %v", m.position.Incoming, incoming)
	case promised != len(m.promised):
		return fmt.Errorf("%d promises, counted %d", len(m.promised), promised)
	case len(m.sales) > m.c.MaxOffers || len(m.wins) > m.c.MaxWins:
		return fmt.Errorf("%d sales and %d wins are too many", len(m.sales), len(m.wins))
	case len(m.promised) > 0 && m.sending < m.c.MaxConcurrentSends:
		return fmt.Errorf("a promise waits beside a free slot")
	}
	return nil
}

// Sample is sample, for its test.
var Sample = sample

// NextNumber is the number that the next offer gets.
func (m *Machine) NextNumber() uint64 { return m.number }
