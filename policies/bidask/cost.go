package bidask

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// If transfers to some candidates cost less than to others, the machine always asks
// some of the cheap ones and drops every bid that is no better than a cheaper one.
// The Selector chooses among the rest and needs no costs. Without costs, or with
// equal ones, nothing in this file has an effect.

// chooseCandidates returns the candidates to ask and the cost of each, nil without
// costs.
func (m *Machine) chooseCandidates(ev Event) ([]policies.ReplicaID, []policies.Micros) {
	if len(ev.Costs) != len(ev.Candidates) || allEqual(ev.Costs) {
		return sample(ev.Candidates, m.config.Self, m.config.Sample, ev.Seed), nil
	}
	var ids []policies.ReplicaID
	if m.config.Sample == AskAll {
		ids = sample(ev.Candidates, m.config.Self, AskAll, ev.Seed)
	} else {
		near, far := splitByCost(ev, m.config.Self)
		ids = sample(near, m.config.Self, (m.config.Sample+1)/2, ev.Seed)
		for _, id := range near {
			if !slices.Contains(ids, id) {
				far = append(far, id)
			}
		}
		ids = append(ids, sample(far, m.config.Self, m.config.Sample-len(ids), ev.Seed+1)...)
	}
	costs := make([]policies.Micros, len(ids))
	for i, id := range ids {
		costs[i] = ev.Costs[slices.Index(ev.Candidates, id)]
	}
	return ids, costs
}

// allEqual reports whether all costs are equal.
func allEqual(costs []policies.Micros) bool {
	for _, c := range costs {
		if c != costs[0] {
			return false
		}
	}
	return true
}

// splitByCost divides the candidates into near ones, which cost at most twice the
// least cost, and far ones.
func splitByCost(ev Event, self policies.ReplicaID) (near, far []policies.ReplicaID) {
	least := policies.Micros(-1)
	for i, c := range ev.Costs {
		if ev.Candidates[i] != self && (least < 0 || c < least) {
			least = max(0, c)
		}
	}
	for i, id := range ev.Candidates {
		switch {
		case id == self:
		case ev.Costs[i]-least <= least:
			near = append(near, id)
		default:
			far = append(far, id)
		}
	}
	return near, far
}

// cost returns the cost of a transfer to an asked replica, 0 if unknown.
func (s *sale) cost(id policies.ReplicaID) policies.Micros {
	if at := slices.Index(s.asked, id); at >= 0 && at < len(s.costs) {
		return s.costs[at]
	}
	return 0
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
