package bidask

import (
	"fmt"

	"github.com/cascadeinfer/cascade/policies"
)

// Check recounts the totals that a machine keeps, and returns the first contradiction.
func (m *Machine) Check() error {
	var sending, receiving, promised int
	var offered, incoming policies.Tokens
	for i, s := range m.sales {
		if i > 0 && m.sales[i-1].deal.Number >= s.deal.Number {
			return fmt.Errorf("sales %v and %v are out of order", m.sales[i-1].deal, s.deal)
		}
		offered += s.migration.Length
		if s.state == exporting || s.holdDeadline != 0 {
			sending++
		}
		if s.holdDeadline != 0 && s.state != accepted || s.promiseDeadline != 0 && (s.state != accepted || s.holdDeadline != 0) {
			return fmt.Errorf("sale %v: hold %d and promise %d in stand %d", s.deal, s.holdDeadline, s.promiseDeadline, s.state)
		}
		if s.promiseDeadline != 0 {
			promised++
		}
		if (s.state == awaitingBids || s.state == confirming) != (s == m.asking) {
			return fmt.Errorf("sale %v: stand %d, but the ask is another's", s.deal, s.state)
		}
		if s.deadline == 0 && s.state != waitingToAsk && s.state != exporting {
			return fmt.Errorf("sale %v: no deadline in stand %d", s.deal, s.state)
		}
		for _, o := range m.sales[:i] {
			if o.migration.Request == s.migration.Request {
				return fmt.Errorf("request %s is for sale twice", s.migration.Request)
			}
		}
	}
	for i, w := range m.wins {
		incoming += w.migration.Length
		if w.state == pulling || w.state == importing {
			receiving++
		}
		if w.deadline == 0 && w.state != importing || (w.answerDeadline != 0) != (w.state == pulling) || w.promiseDeadline != 0 && w.state != queued {
			return fmt.Errorf("win %+v: deadlines", *w)
		}
		for _, o := range m.wins[:i] {
			if o.deal == w.deal {
				return fmt.Errorf("deal %v is won twice", w.deal)
			}
		}
	}
	switch {
	case sending != m.sending || sending > m.config.MaxConcurrentSends:
		return fmt.Errorf("%d send slots in use, %d counted, %d there", m.sending, sending, m.config.MaxConcurrentSends)
	case receiving != m.receiving || receiving > m.config.MaxConcurrentReceives:
		return fmt.Errorf("%d receive slots in use, %d counted, %d there", m.receiving, receiving, m.config.MaxConcurrentReceives)
	case offered != m.offeredTokens:
		return fmt.Errorf("offered %v, counted %v", m.offeredTokens, offered)
	case incoming != m.occupancy.Incoming:
		return fmt.Errorf("incoming %v, counted %v", m.occupancy.Incoming, incoming)
	case promised != len(m.promised):
		return fmt.Errorf("%d promises, counted %d", len(m.promised), promised)
	case len(m.wins) > m.config.MaxWins:
		return fmt.Errorf("%d wins are too many", len(m.wins))
	case len(m.promised) > 0 && m.sending < m.config.MaxConcurrentSends:
		return fmt.Errorf("a promise waits beside a free slot")
	}
	return nil
}

// Sample exports sample for its test.
var Sample = sample

// NextNumber returns the number of the next offer.
func (m *Machine) NextNumber() uint64 { return m.number }

// Idle reports whether there is neither a sale nor a win.
func (m *Machine) Idle() bool { return len(m.sales) == 0 && len(m.wins) == 0 }
