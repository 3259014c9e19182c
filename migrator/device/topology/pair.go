package topology

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

// Place is where a replica keeps its KV cache.
type Place struct {
	Replica policies.ReplicaID `json:"replica"`
	Node    string             `json:"node"`
	// GPU is the index of the GPU; Unknown means host memory. With several ranks it is
	// the GPU of the first one.
	GPU int `json:"gpu"`
	// Adapter is the RDMA port for its blocks.
	Adapter Adapter `json:"adapter,omitzero"`
}

// Pair is the paths from one replica to another.
type Pair struct {
	From policies.ReplicaID `json:"from"`
	To   policies.ReplicaID `json:"to"`
	// Paths are in order of preference. The first one that is not closed is used; there
	// always is one.
	Paths []links.Path `json:"paths"`
}

// Best returns the path that is used.
func (p Pair) Best() links.Path { return links.BestPath(p.Paths) }

// Machines maps the names of hosts to what is known of them.
type Machines map[string]*Machine

// Topology is what is known of a place.
func (ms Machines) Topology(p Place) links.Topology {
	if m := ms[p.Node]; m != nil {
		return m.Topology(p)
	}
	s := links.Topology{Host: p.Node}
	if p.GPU != Unknown {
		s.GPU = &links.GPU{Index: p.GPU, Absent: true}
	}
	return s
}

// Pairs returns all pairs of different replicas, in the order of places.
func (ms Machines) Pairs(places []Place) []Pair {
	topologies := make([]links.Topology, len(places))
	for i, p := range places {
		topologies[i] = ms.Topology(p)
	}
	var out []Pair
	for i, from := range places {
		for k, to := range places {
			if from.Replica != to.Replica {
				out = append(out, Pair{From: from.Replica, To: to.Replica, Paths: links.Paths(topologies[i], topologies[k])})
			}
		}
	}
	return out
}
