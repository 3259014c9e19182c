package topology

import (
	"math"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

// Rate, Kind and Way are those of package links.
type (
	Rate = links.Rate
	Kind = links.Kind
	Way  = links.Path
)

// Common rates.
const (
	Megabyte = links.Megabyte
	Gigabyte = links.Gigabyte
	Gigabit  = links.Gigabit
)

// The kinds, the best first.
const (
	SameGPU    = links.SameGPU
	NVLinked   = links.NVLinked
	PeerPCIe   = links.PeerPCIe
	ViaHost    = links.ViaHost
	RDMA       = links.RDMA
	RDMABounce = links.RDMABounce
	TCP        = links.TCP
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

// Pair is the ways from one replica to another.
type Pair struct {
	From policies.ReplicaID `json:"from"`
	To   policies.ReplicaID `json:"to"`
	// Ways are in order of preference. The first one that is not closed is used; there
	// always is one.
	Ways []Way `json:"ways"`
}

// Best returns the way that is used.
func (p Pair) Best() Way { return links.BestPath(p.Ways) }

// Cost returns how long that many bytes take on the best way, without other load.
func (p Pair) Cost(bytes policies.Bytes) policies.Micros {
	w := p.Best()
	if w.Rate <= 0 || bytes <= 0 {
		return w.Latency
	}
	seconds, rest := int64(bytes)/int64(w.Rate), int64(bytes)%int64(w.Rate)
	if seconds > math.MaxInt64/int64(policies.Second)-1 {
		return math.MaxInt64
	}
	// In two steps, to avoid an overflow of the product.
	return w.Latency + policies.Micros(seconds)*policies.Second + policies.Micros(rest/int64(max(1, w.Rate/Rate(policies.Second))))
}

// Machines maps the names of hosts to what is known of them.
type Machines map[string]*Machine

// Site is what is known of a place.
func (ms Machines) Site(p Place) links.Topology {
	if m := ms[p.Node]; m != nil {
		return m.Site(p)
	}
	s := links.Topology{Host: p.Node}
	if p.GPU != Unknown {
		s.GPU = &links.GPU{Index: p.GPU, Absent: true}
	}
	return s
}

// Pair computes the ways of a pair. Equal machines and places give equal pairs.
func (ms Machines) Pair(from, to Place) Pair {
	return Pair{From: from.Replica, To: to.Replica, Ways: links.Paths(ms.Site(from), ms.Site(to))}
}

// Pairs returns all pairs of different replicas, in the order of places.
func (ms Machines) Pairs(places []Place) []Pair {
	sites := make([]links.Topology, len(places))
	for i, p := range places {
		sites[i] = ms.Site(p)
	}
	var out []Pair
	for i, from := range places {
		for k, to := range places {
			if from.Replica != to.Replica {
				out = append(out, Pair{From: from.Replica, To: to.Replica, Ways: links.Paths(sites[i], sites[k])})
			}
		}
	}
	return out
}
