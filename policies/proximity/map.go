// Package proximity is placement by proximity: it prices migrations between the
// replicas of a fleet from their links, prices the migrations of a plan, and chooses
// replicas for adjacent stages so that migrations between them are cheap.
//
// A sender prefers the nearest receiver of the next stage (in package bidask a nearer
// bidder wins unless it has more load), so a plan's migrations are priced by the
// nearest receiver of each sender. No cost grows with the square of the fleet:
// replicas at equal positions of equal hosts form a class, and only pairs of classes
// are priced.
//
// A Map is a pure function of the topologies it is made of. It decides neither ranges
// nor counts, and it never moves a replica to another stage that would not move anyway.
package proximity

import (
	"math"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

// maxClasses bounds the distinguished classes: enough for thirty kinds of hosts with
// eight GPUs. Of replicas beyond it only the host counts.
const maxClasses = 256

// Replica is a replica and its topology.
type Replica struct {
	ID       policies.ReplicaID
	Topology links.Topology
}

// Config is the input of New.
type Config struct {
	// Replicas are the replicas, each once.
	Replicas []Replica
	// Rates are the rates where nothing is known.
	Rates links.Rates
	// TokenBytes is the KV of one token in bytes. Base is the part of a migration's time, in
	// seconds, that does not depend on links.
	TokenBytes, Base float64
}

// Map holds the transfer costs of a fleet. It is not safe for concurrent use.
type Map struct {
	config    Config
	locations map[policies.ReplicaID]location
	classes   []links.Topology // one topology of each class, without a host; the first is the unknown one
	// same and between hold the cost of a transfer between two classes on one host and on
	// two, by first·len(classes)+second; NaN: not computed yet.
	same, between []policies.Transfer
}

// location is a position in the fleet: a host and a class.
type location struct{ host, class int32 }

// New returns the map of a fleet.
func New(c Config) *Map {
	m := &Map{config: c, locations: make(map[policies.ReplicaID]location, len(c.Replicas)), classes: []links.Topology{{}}}
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
func (m *Map) Transfer(from, to policies.ReplicaID) policies.Transfer {
	a, ok := m.locations[from]
	b, too := m.locations[to]
	if !ok || !too {
		return m.classTransfer(a.class, b.class, false)
	}
	return m.classTransfer(a.class, b.class, a.host == b.host)
}

// classTransfer returns the cost of a transfer between two classes.
func (m *Map) classTransfer(a, b int32, together bool) policies.Transfer {
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
func (m *Map) NearestTransfer(ids []policies.ReplicaID) policies.Transfer {
	return m.receivers(ids, referenceLength).mean(ids, 1)
}

// referenceLength is a length at which a link's rate outweighs its latency.
const referenceLength policies.Tokens = 8192

// PlanTransfer prices the migrations of a plan: one Transfer that costs as much, over
// all boundaries, as each sender's nearest receiver does. crossings are the requests
// per second across each boundary; without any, all boundaries count alike.
func (m *Map) PlanTransfer(p policies.Plan, crossings []float64) policies.Transfer {
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
