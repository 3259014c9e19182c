// Package links describes how KV blocks get from one replica to another: what connects
// the two, which transport is best, how fast it is, and why. A CostMap prices the
// migrations of a plan from the links, and chooses replicas for adjacent stages so that
// migrations between them are cheap.
//
// A Topology describes where one replica's KV cache is and which links lead away from
// there: plain data, small enough for a load report. Everything else is a pure function
// of two topologies, in integers. Package links inspects no hardware
// (migrator/device/topology makes a Topology of an inventory) and transfers nothing.
//
// Rates and latencies are estimates from data sheets: good enough to choose between two
// paths, but not guarantees. A transport's measurements take precedence. If two
// topologies contradict each other, the slower value counts.
package links

import (
	"errors"
	"strconv"

	"github.com/cascadeinfer/cascade/policies"
)

// Rate is bytes per second; 0 means unknown.
type Rate int64

// Common rates.
const (
	Megabyte Rate = 1e6
	Gigabyte Rate = 1e9
	Gigabit       = Gigabyte / 8
)

// String returns the rate in GB/s, or "unknown".
func (r Rate) String() string {
	if r <= 0 {
		return "unknown"
	}
	return strconv.FormatFloat(float64(r)/1e9, 'f', 1, 64) + " GB/s"
}

// Kind is how bytes get from one replica's memory to another's.
type Kind uint8

// The kinds, best first.
const (
	SameGPU    Kind = iota + 1 // a copy within one GPU
	NVLinked                   // GPU to GPU, over NVLink
	PeerPCIe                   // GPU to GPU, over PCIe
	ViaHost                    // through host memory, on one host
	RDMA                       // GPU to NIC to NIC to GPU
	RDMABounce                 // the same, through both hosts' memories
	TCP                        // through both kernels
)

var kinds = [...]string{
	SameGPU: "same GPU", NVLinked: "NVLink", PeerPCIe: "PCIe P2P", ViaHost: "host memory",
	RDMA: "RDMA (GPUDirect)", RDMABounce: "RDMA (host bounce)", TCP: "TCP",
}

// String returns the kind for operators.
func (k Kind) String() string {
	if k < SameGPU || k > TCP {
		return "kind " + strconv.Itoa(int(k))
	}
	return kinds[k]
}

// MarshalText writes String.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads String.
func (k *Kind) UnmarshalText(text []byte) error {
	for i := SameGPU; i <= TCP; i++ {
		if kinds[i] == string(text) {
			*k = i
			return nil
		}
	}
	return errors.New("no link kind is called " + strconv.Quote(string(text)))
}

// The transports, by their names in the migrator.
const (
	TransportCUDA  = "cuda"
	TransportShm   = "shm"
	TransportVerbs = "verbs"
	TransportTCP   = "tcp"
)

// Path is one path between a pair of replicas, usable or closed.
type Path struct {
	Kind      Kind            `json:"kind"`
	Transport string          `json:"transport"`
	Rate      Rate            `json:"rate"`       // estimated; 0 if unknown or closed
	Latency   policies.Micros `json:"latency_us"` // estimated, before the first byte
	// Reason says what the path uses or, if Closed, what it lacks.
	Reason string `json:"reason"`
	Closed bool   `json:"closed,omitempty"`
}

// Transfer prices a migration that uses the path alone, of a model with that many bytes
// of KV per token. An unknown rate costs nothing.
func (w Path) Transfer(tokenBytes float64) policies.Transfer {
	t := policies.Transfer{Base: float64(w.Latency) / 1e6}
	if w.Rate > 0 {
		t.PerToken = tokenBytes / float64(w.Rate)
	}
	return t
}

// BestPath returns the first path that is not closed.
func BestPath(paths []Path) Path {
	for _, p := range paths {
		if !p.Closed {
			return p
		}
	}
	return Path{Closed: true, Reason: "no path"}
}

// The latencies have the order of magnitude of measured ones.
var latencies = [...]policies.Micros{
	SameGPU: 10, NVLinked: 10, PeerPCIe: 15, ViaHost: 40, RDMA: 10, RDMABounce: 50, TCP: 100,
}

func openPath(k Kind, transport string, r Rate, why string) Path {
	return Path{Kind: k, Transport: transport, Rate: r, Latency: latencies[k], Reason: why}
}

func closedPath(k Kind, transport, why string) Path {
	return Path{Kind: k, Transport: transport, Reason: why, Closed: true}
}
