// Package links says how KV blocks get from one replica to another: what lies
// between the two, which transport is the best for it, how fast it is, and why.
//
// A Site is what one replica's migrator tells of where its KV cache is and what
// leads away from there: inert data, small enough to travel with a report.
// Everything else is a pure function of two sites, in integers. Package links
// finds nothing out (migrator/device/topology makes a Site of an inventory) and
// moves nothing.
//
// Rates and latencies are estimates from data sheets: good for choosing between two
// ways, not for promises. What a transport then measures is worth more. Where two
// sites contradict each other, the slower of what they say counts.
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

// String is the rate in GB/s, or "unknown".
func (r Rate) String() string {
	if r <= 0 {
		return "unknown"
	}
	return strconv.FormatFloat(float64(r)/1e9, 'f', 1, 64) + " GB/s"
}

// Kind is how bytes get from one replica's memory to another's.
type Kind uint8

// The kinds, the best first.
const (
	SameGPU    Kind = iota + 1 // a copy within one GPU
	NVLinked                   // GPU to GPU, over NVLink
	PeerPCIe                   // GPU to GPU, over PCIe
	ViaHost                    // by way of the host's memory, on one machine
	RDMA                       // GPU to NIC to NIC to GPU
	RDMABounce                 // the same, by way of both hosts' memories
	TCP                        // through the kernels
)

var kinds = [...]string{
	SameGPU: "same GPU", NVLinked: "NVLink", PeerPCIe: "PCIe P2P", ViaHost: "host memory",
	RDMA: "RDMA (GPUDirect)", RDMABounce: "RDMA (host bounce)", TCP: "TCP",
}

// String is the kind for people.
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
	return errors.New("no way is called " + strconv.Quote(string(text)))
}

// The transports, by the names that migrators know them by.
const (
	TransportCUDA  = "cuda"
	TransportShm   = "shm"
	TransportVerbs = "verbs"
	TransportTCP   = "tcp"
)

// Path is one way for a pair of replicas, open or not.
type Path struct {
	Kind      Kind            `json:"kind"`
	Transport string          `json:"transport"`
	Rate      Rate            `json:"rate"`       // estimated; 0 for unknown or closed
	Latency   policies.Micros `json:"latency_us"` // estimated, before the first byte
	// Reason says what the way goes over, or, when Closed, what it lacks.
	Reason string `json:"why"`
	Closed bool   `json:"closed,omitempty"`
}

// Transfer prices a hand-over by the way, alone on it, of a model that has as many
// bytes of KV a token. An unknown rate costs nothing.
func (w Path) Transfer(tokenBytes float64) policies.Transfer {
	t := policies.Transfer{Base: float64(w.Latency) / 1e6}
	if w.Rate > 0 {
		t.PerToken = tokenBytes / float64(w.Rate)
	}
	return t
}

// BestPath is the first of ways that is not closed.
func BestPath(ways []Path) Path {
	for _, w := range ways {
		if !w.Closed {
			return w
		}
	}
	return Path{Closed: true, Reason: "no way"}
}

// The latencies are of the order of what transports have measured.
var latencies = [...]policies.Micros{
	SameGPU: 10, NVLinked: 10, PeerPCIe: 15, ViaHost: 40, RDMA: 10, RDMABounce: 50, TCP: 100,
}

func openPath(k Kind, transport string, r Rate, why string) Path {
	return Path{Kind: k, Transport: transport, Rate: r, Latency: latencies[k], Reason: why}
}

func closedPath(k Kind, transport, why string) Path {
	return Path{Kind: k, Transport: transport, Reason: why, Closed: true}
}
