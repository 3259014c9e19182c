package links

import (
	"math"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// maxClasses bounds the distinguished classes: enough for thirty kinds of hosts with
// eight GPUs. Of replicas beyond it only the host counts.
const maxClasses = 256

// Endpoint is a replica and its topology.
type Endpoint struct {
	ID       policies.ReplicaID
	Topology Topology
}

// CostMapConfig is the input of NewCostMap.
type CostMapConfig struct {
	// Replicas are the replicas, each once.
	Replicas []Endpoint
	// Rates are the rates where nothing is known.
	Rates Rates
	// TokenBytes is the KV of one token in bytes. Base is the part of a migration's time, in
	// seconds, that does not depend on links.
	TokenBytes, Base float64
}

// CostMap holds the transfer costs of a fleet. It is not safe for concurrent use.
type CostMap struct {
	config    CostMapConfig
	locations map[policies.ReplicaID]location
	classes   []Topology // one topology of each class, without a host; the first is the unknown one
	// same and between hold the cost of a transfer between two classes on one host and on
	// two, by first·len(classes)+second; NaN: not computed yet.
	same, between []policies.Transfer
}

// Clone returns a copy that another goroutine may use.
func (m *CostMap) Clone() *CostMap {
	clone := *m
	clone.same, clone.between = slices.Clone(m.same), slices.Clone(m.between)
	return &clone
}

// location is a position in the fleet: a host and a class.
type location struct{ host, class int32 }

// NewCostMap returns the map of a fleet.
func NewCostMap(c CostMapConfig) *CostMap {
	m := &CostMap{config: c, locations: make(map[policies.ReplicaID]location, len(c.Replicas)), classes: []Topology{{}}}
	nodes, classes := make(map[string]int32), map[string]int32{"": 0}
	for _, s := range c.Replicas {
		node, ok := nodes[s.Topology.Host]
		if !ok {
			node = int32(len(nodes))
			nodes[s.Topology.Host] = node
		}
		name := s.Topology.Class()
		class, ok := classes[name]
		if !ok && len(m.classes) < maxClasses {
			class = int32(len(m.classes))
			classes[name] = class
			m.classes = append(m.classes, s.Topology)
		}
		m.locations[s.ID] = location{node, class}
	}
	n := len(m.classes) * len(m.classes)
	m.same, m.between = make([]policies.Transfer, n), make([]policies.Transfer, n)
	for i := range n {
		m.same[i].Base, m.between[i].Base = math.NaN(), math.NaN()
	}
	return m
}

// Transfer prices a migration from one replica to another. A replica that the map does
// not have counts as on a host of its own.
func (m *CostMap) Transfer(from, to policies.ReplicaID) policies.Transfer {
	a, ok := m.locations[from]
	b, too := m.locations[to]
	if !ok || !too {
		return m.classTransfer(a.class, b.class, false)
	}
	return m.classTransfer(a.class, b.class, a.host == b.host)
}

// classTransfer returns the cost of a transfer between two classes.
func (m *CostMap) classTransfer(a, b int32, together bool) policies.Transfer {
	table, i := m.between, int(a)*len(m.classes)+int(b)
	if together {
		table = m.same
	}
	if math.IsNaN(table[i].Base) {
		from, to := m.classes[a], m.classes[b]
		from.Host, to.Host = "a", "b"
		if together {
			to.Host = "a"
		}
		t := m.config.Rates.BestPath(from, to).Transfer(m.config.TokenBytes)
		t.Base += m.config.Base
		table[i] = t
	}
	return table[i]
}

// seconds returns the time of a transfer of a length.
func seconds(t policies.Transfer, length policies.Tokens) float64 {
	return t.Base + float64(t.PerToken*float64(length))
}

// NearestTransfer returns the mean cost of a migration if the nearest other replica of
// each is in the next stage: a lower bound for every plan. It is 0 for one replica,
// which has no other.
func (m *CostMap) NearestTransfer(ids []policies.ReplicaID) policies.Transfer {
	return m.receivers(ids, referenceLength).mean(ids, 1)
}

// referenceLength is a length at which a link's rate outweighs its latency.
const referenceLength policies.Tokens = 8192

// PlanTransfer prices the migrations of a plan: one Transfer that costs as much, over
// all boundaries, as each sender's nearest receiver does. crossings are the requests
// per second across each boundary; without any, all boundaries count alike.
func (m *CostMap) PlanTransfer(p policies.Plan, crossings []float64) policies.Transfer {
	var sum policies.Transfer
	var all, tokens float64
	for l := range len(p.Stages) - 1 {
		x := weight(crossings, l)
		cut := float64(p.Stages[l].High)
		t := m.receivers(p.Stages[l+1].Replicas, p.Stages[l].High).mean(p.Stages[l].Replicas, 0)
		sum.Base += float64(x * t.Base)
		sum.PerToken += float64(x * cut * t.PerToken)
		all += x
		tokens += float64(x * cut)
	}
	if tokens == 0 {
		return policies.Transfer{}
	}
	return policies.Transfer{Base: sum.Base / all, PerToken: sum.PerToken / tokens}
}

// weight returns the weight of a boundary.
func weight(crossings []float64, l int) float64 {
	for _, x := range crossings {
		if x > 0 {
			return crossings[l]
		}
	}
	return 1
}

// receivers holds the replicas of a stage by location.
type receivers struct {
	m      *CostMap
	length policies.Tokens
	on     map[int32][]classCount // by host
	spread []int                  // hosts that have a class, by class
}

// classCount is how many replicas of a class a host has.
type classCount struct {
	class int32
	count int
}

func (m *CostMap) receivers(ids []policies.ReplicaID, length policies.Tokens) *receivers {
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
