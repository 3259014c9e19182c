package bidask

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// If transfers to some candidates cost less than to others, the machine always asks
// some of the cheap ones and drops every bid that is no better than a cheaper one.
// The Selector chooses among the rest and needs no costs. Without costs, or with
// equal ones, nothing in this file has an effect.

// cost returns the cost of a transfer to a candidate.
func (s *sale) cost(id policies.ReplicaID) policies.Micros {
	return s.costs[slices.Index(s.candidates, id)]
}

// selectBid returns the index of the winning bid, or −1.
func (m *Machine) selectBid(s *sale) int {
	if s.costs == nil {
		return m.config.Selector.Select(m.bids)
	}
	m.undominated, m.undominatedIndex = m.undominated[:0], m.undominatedIndex[:0]
	for i, b := range m.bids {
		if !m.dominated(s, b) {
			m.undominated, m.undominatedIndex = append(m.undominated, b), append(m.undominatedIndex, i)
		}
	}
	at := m.config.Selector.Select(m.undominated)
	if at < 0 || at >= len(m.undominatedIndex) {
		return -1
	}
	return m.undominatedIndex[at]
}

// dominated reports whether a cheaper bidder has no more load than this one, or at
// most the request's length more: the request there leaves the two loads no further
// apart than they were.
func (m *Machine) dominated(s *sale, b policies.Bid) bool {
	cost := s.cost(b.From)
	return slices.ContainsFunc(m.bids, func(o policies.Bid) bool {
		return s.cost(o.From) < cost && o.Load-s.migration.Length <= b.Load
	})
}
