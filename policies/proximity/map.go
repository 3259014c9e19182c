// Package proximity knows how far the replicas of a fleet are from each other: what a
// hand-over from one to another costs, what those of a plan cost, and which replicas
// adjacent stages should have so that they cost little.
//
// A sender prefers the nearest receiver of the next stage (package bidask: nearer
// ones win as long as they are not more loaded), so a plan's hand-overs are priced by
// the nearest one each. Nothing grows with the square of the fleet: replicas that
// are in equal places of equal machines are of one class, and only pairs of classes
// are looked at.
//
// A Map is a pure function of the sites it is made of; it decides no ranges and no
// counts, and moves nobody from one stage to another who would not move anyway.
package proximity

import (
	"math"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

// maxClasses bounds the classes that are told apart: those of thirty kinds of
// machines with eight GPUs. Of replicas beyond it nothing counts but the node.
const maxClasses = 256

// Replica is a replica and where it is.
type Replica struct {
	ID       policies.ReplicaID
	Topology links.Topology
}

// Config is what a Map is made of.
type Config struct {
	// Replicas are the replicas, each once.
	Replicas []Replica
	// Rates are the rates where nothing is known.
	Rates links.Rates
	// TokenBytes is the KV of one token, in bytes. Base is the seconds that a
	// hand-over takes besides its links.
	TokenBytes, Base float64
}

// Map is a fleet's nearness. It is for one goroutine at a time.
type Map struct {
	config    Config
	locations map[policies.ReplicaID]location
	classes   []links.Topology // one of each class, without a node; the first is the unknown one
	hosts     int
	// same and far are what a hand-over costs between two classes on one node and on
	// two, by first·len(classes)+second; NaN: not worked out yet.
	same, between []policies.Transfer
}

// location is a place in the fleet: a node and a class.
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
	m.hosts = len(nodes)
	n := len(m.classes) * len(m.classes)
	m.same, m.between = make([]policies.Transfer, n), make([]policies.Transfer, n)
	for i := range n {
		m.same[i].Base, m.between[i].Base = math.NaN(), math.NaN()
	}
	return m
}

// Transfer prices a hand-over from one replica to another. One that the map does not
// have is on a node of its own.
func (m *Map) Transfer(from, to policies.ReplicaID) policies.Transfer {
	a, ok := m.locations[from]
	b, too := m.locations[to]
	if !ok || !too {
		return m.classTransfer(a.class, b.class, false)
	}
	return m.classTransfer(a.class, b.class, a.host == b.host)
}

// classTransfer is what a hand-over costs between two classes.
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

// seconds is what a hand-over of a length takes.
func seconds(t policies.Transfer, length policies.Tokens) float64 {
	return t.Base + float64(t.PerToken*float64(length))
}

// NearestTransfer is what a hand-over costs on the mean if each of the replicas has the
// nearest other one of them in the next stage: no plan does better. It is 0 of one
// replica, which hands nothing over.
func (m *Map) NearestTransfer(ids []policies.ReplicaID) policies.Transfer {
	return m.receivers(ids, referenceLength).mean(ids, 1)
}

// referenceLength is a length at which a link's rate outweighs its latency.
const referenceLength policies.Tokens = 8192

// PlanTransfer prices the hand-overs of a plan: one Transfer that costs as much, over all its
// boundaries, as each sender's nearest receiver does. crossings are how many requests
// a second go over each boundary; where there are none, all count alike.
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
	if all == 0 || tokens == 0 {
		return policies.Transfer{}
	}
	return policies.Transfer{Base: sum.Base / all, PerToken: sum.PerToken / tokens}
}

// weight is how much a boundary counts.
func weight(crossings []float64, l int) float64 {
	for _, x := range crossings {
		if x > 0 {
			return crossings[l]
		}
	}
	return 1
}
