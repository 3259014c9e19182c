package proximity

import (
	"math"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// receivers holds the replicas of a stage by location.
type receivers struct {
	m      *Map
	length policies.Tokens
	on     map[int32][]classCount // by host
	spread []int                  // hosts that have a class, by class
}

// classCount is how many replicas of a class a host has.
type classCount struct {
	class int32
	count int
}

func (m *Map) receivers(ids []policies.ReplicaID, length policies.Tokens) *receivers {
	r := &receivers{m: m, length: length, on: make(map[int32][]classCount), spread: make([]int, len(m.classes))}
	for _, id := range ids {
		s, ok := m.locations[id]
		if !ok {
			continue
		}
		here := r.on[s.host]
		if i := slices.IndexFunc(here, func(h classCount) bool { return h.class == s.class }); i >= 0 {
			here[i].count++
		} else {
			r.on[s.host] = append(here, classCount{s.class, 1})
			r.spread[s.class]++
		}
	}
	return r
}

// nearest returns the cheapest transfer from a location; false if there is none. own
// receivers at the same location are not counted.
func (r *receivers) nearest(s location, own int) (best policies.Transfer, ok bool) {
	least := math.Inf(1)
	try := func(t policies.Transfer) {
		if c := seconds(t, r.length); c < least {
			best, least, ok = t, c, true
		}
	}
	here := r.on[s.host]
	for _, h := range here {
		if h.class != s.class || h.count > own {
			try(r.m.classTransfer(s.class, h.class, true))
		}
	}
	for class, nodes := range r.spread {
		for _, h := range here {
			if int(h.class) == class {
				nodes--
			}
		}
		if nodes > 0 {
			try(r.m.classTransfer(s.class, int32(class), false))
		}
	}
	return best, ok
}

// mean returns the mean cost of the transfers from each sender to its nearest receiver,
// zero without receivers. own receivers at a sender's location are the sender itself.
func (r *receivers) mean(from []policies.ReplicaID, own int) policies.Transfer {
	senders := make(map[location]int)
	var order []location // fixes the order of summation
	for _, id := range from {
		s, ok := r.m.locations[id]
		if !ok {
			continue
		}
		if senders[s]++; senders[s] == 1 {
			order = append(order, s)
		}
	}
	var sum policies.Transfer
	n := 0
	for _, s := range order {
		if t, ok := r.nearest(s, own); ok {
			count := senders[s]
			n += count
			sum.Base += float64(float64(count) * t.Base)
			sum.PerToken += float64(float64(count) * t.PerToken)
		}
	}
	if n == 0 {
		return policies.Transfer{}
	}
	return policies.Transfer{Base: sum.Base / float64(n), PerToken: sum.PerToken / float64(n)}
}
