package topology

import (
	"math"

	"github.com/cascadeinfer/cascade/policies"
)

// Place is where a replica keeps its KV cache.
type Place struct {
	Replica policies.ReplicaID `json:"replica"`
	Node    string             `json:"node"`
	// GPU is the index of the GPU; Unknown for the machine's own memory. Of several
	// ranks it is the first one's, which stands for all.
	GPU int `json:"gpu"`
}

// Pair is the ways from one replica to another.
type Pair struct {
	From policies.ReplicaID `json:"from"`
	To   policies.ReplicaID `json:"to"`
	// Ways are in order of preference. The first that is not closed is to be used;
	// there always is one.
	Ways []Way `json:"ways"`
}

// Best is the way to use.
func (p Pair) Best() Way {
	for _, w := range p.Ways {
		if !w.Closed {
			return w
		}
	}
	return Way{Closed: true, Why: "no way"} // the zero Pair
}

// Cost is how long that many bytes take by the best way, alone on it.
func (p Pair) Cost(bytes policies.Bytes) policies.Micros {
	w := p.Best()
	if w.Rate <= 0 || bytes <= 0 {
		return w.Latency
	}
	seconds, rest := int64(bytes)/int64(w.Rate), int64(bytes)%int64(w.Rate)
	if seconds > math.MaxInt64/int64(policies.Second)-1 {
		return math.MaxInt64
	}
	// In two steps, or the product would overflow.
	return w.Latency + policies.Micros(seconds)*policies.Second + policies.Micros(rest/int64(max(1, w.Rate/Rate(policies.Second))))
}

// Machines finds what is known of a node, nil for nothing.
type Machines map[string]*Machine

// Pair works the ways out. Equal machines and places give equal pairs.
func (ms Machines) Pair(from, to Place) Pair {
	a, b := ms.end(from), ms.end(to)
	p := Pair{From: from.Replica, To: to.Replica}
	same := from.Node == to.Node
	switch {
	case same && a.machine == nil:
		p.Ways = []Way{closed(SameGPU, TransportCUDA, "nothing is known of node %s", from.Node), shm(a, b)}
	case same:
		p.Ways = []Way{cuda(a, b), shm(a, b)}
	default:
		p.Ways = verbs(a, b)
	}
	p.Ways = append(p.Ways, tcp(a, b, same))
	return p
}

// Pairs are all pairs of different replicas, by the order of places.
func (ms Machines) Pairs(places []Place) []Pair {
	var out []Pair
	for _, from := range places {
		for _, to := range places {
			if from.Replica != to.Replica {
				out = append(out, ms.Pair(from, to))
			}
		}
	}
	return out
}

func (ms Machines) end(p Place) end {
	e := end{place: p, machine: ms[p.Node]}
	if e.machine != nil && e.onGPU() {
		e.gpu = e.machine.GPU(p.GPU)
	}
	return e
}
