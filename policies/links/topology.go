package links

import (
	"strconv"
	"strings"

	"github.com/cascadeinfer/cascade/policies"
)

// UnknownIndex is the index of a GPU of which only the address is known.
const UnknownIndex = -1

// The bounds of a Topology that was received.
const (
	MaxPeers = 64  // other GPUs that a GPU lists
	MaxName  = 256 // bytes of a host's name
	MaxText  = 128 // bytes of any other name, and of a reason
	maxCount = 1024
	maxIndex = 1 << 20
	maxRate  = 1 << 50 // bytes a second, far above any link
)

// Topology describes where a replica's KV cache is and which links lead away from there.
// A Topology with only a Host is a replica about which nothing else is known. It is
// shared and must not be changed.
//
// Invariants, checked by Validate:
//  1. Host has at most MaxName bytes, all other names and reasons at most MaxText,
//  2. rates, counts and indices are not negative, except UnknownIndex, and within
//     bounds,
//  3. distances are known values or 0,
//  4. a GPU lists at most MaxPeers others.
type Topology struct {
	Host string `json:"host"`
	// Known reports whether the host was inspected. Otherwise the other fields, except the
	// GPU's index, are not set.
	Known bool `json:"known,omitempty"`
	// GPU holds the KV cache; with several ranks it is the first rank's GPU, which stands
	// for all. nil: the cache is in host memory.
	GPU *GPU `json:"gpu,omitempty"`
	// CUDA says why transport "cuda" cannot be used, Verbs why transport "verbs" cannot:
	// the library is missing, or the fleet file excludes RDMA. "" means that it can be used.
	CUDA  string `json:"cuda,omitempty"`
	Verbs string `json:"verbs,omitempty"`
	// RDMA is the nearest port that is up; nil for none.
	RDMA *Port `json:"rdma,omitempty"`
	// PeerMemory reports whether NICs can read the GPU's memory.
	PeerMemory bool `json:"peer_memory,omitempty"`
	// TCP is the rate of the fastest interface that speaks IP.
	TCP Rate `json:"tcp,omitempty"`
}

// GPU is what other replicas need to know about a GPU.
type GPU struct {
	Index   int    `json:"index"`
	UUID    string `json:"uuid,omitempty"`
	Address string `json:"address,omitempty"` // on the PCI bus
	// Absent reports that the host has no such GPU. Lost says why the GPU cannot be used at
	// all. MIG reports that it is divided into instances with separate memories.
	Absent bool   `json:"absent,omitempty"`
	Lost   string `json:"lost,omitempty"`
	MIG    bool   `json:"mig,omitempty"`
	Copy   Rate   `json:"copy,omitempty"` // within its memory
	PCIe   Rate   `json:"pcie,omitempty"` // of its slot
	// Switched are the NVLinks into switches, which reach every GPU of the host that is
	// connected to them too.
	Switched Bundle `json:"switched,omitzero"`
	Peers    []Peer `json:"peers,omitempty"` // other GPUs of the host
}

// Bundle is a set of parallel links and their total rate each way.
type Bundle struct {
	Links int  `json:"links"`
	Rate  Rate `json:"rate"`
}

// Peer is another GPU of the same host, as one GPU sees it.
type Peer struct {
	Index   int    `json:"index"` // Unknown where only its address is known
	Address string `json:"address,omitempty"`
	// NVLinks are the direct NVLinks between the two.
	NVLinks  Bundle   `json:"nvlinks,omitzero"`
	Distance Distance `json:"distance,omitempty"` // on the PCI bus; 0 means unknown
	// Asked reports whether the driver was asked what one GPU may do to the other's memory:
	// Read, Write, and whether it does so over NVLink. Transports only read.
	Asked  bool `json:"asked,omitempty"`
	Read   bool `json:"read,omitempty"`
	Write  bool `json:"write,omitempty"`
	NVLink bool `json:"nvlink,omitempty"`
}

// Port is a port of an RDMA device.
type Port struct {
	Name  string `json:"name"`
	Layer string `json:"layer"` // InfiniBand or Ethernet
	// Subnet distinguishes fabrics of one layer; "" if it does not.
	Subnet   string   `json:"subnet,omitempty"`
	Rate     Rate     `json:"rate,omitempty"`
	Distance Distance `json:"distance,omitempty"` // from the GPU; 0 without one
}

// Validate reports the first broken invariant, or nil.
func (s Topology) Validate() error {
	c := fieldChecker{}
	c.name("host", s.Host, MaxName)
	c.name("cuda", s.CUDA, MaxText)
	c.name("verbs", s.Verbs, MaxText)
	c.rate("tcp", s.TCP)
	if g := s.GPU; g != nil {
		c.name("gpu.uuid", g.UUID, MaxText)
		c.name("gpu.address", g.Address, MaxText)
		c.name("gpu.lost", g.Lost, MaxText)
		c.index("gpu.index", g.Index)
		c.rate("gpu.copy", g.Copy)
		c.rate("gpu.pcie", g.PCIe)
		c.bundle("gpu.switched", g.Switched)
		c.expect(len(g.Peers) <= MaxPeers, "4: gpu.peers: more than "+strconv.Itoa(MaxPeers))
		for _, p := range g.Peers {
			c.index("gpu.peers.index", p.Index)
			c.name("gpu.peers.address", p.Address, MaxText)
			c.bundle("gpu.peers.nvlinks", p.NVLinks)
			c.expect(p.Distance <= UnknownDistance, "3: gpu.peers.distance")
		}
	}
	if p := s.RDMA; p != nil {
		c.name("rdma.name", p.Name, MaxText)
		c.name("rdma.layer", p.Layer, MaxText)
		c.name("rdma.subnet", p.Subnet, MaxText)
		c.rate("rdma.rate", p.Rate)
		c.expect(p.Distance <= UnknownDistance, "3: rdma.distance")
	}
	if c.broken != "" {
		return &policies.Violation{Subject: "topology", Invariant: c.broken}
	}
	return nil
}

// fieldChecker keeps the first violation.
type fieldChecker struct{ broken string }

func (c *fieldChecker) expect(ok bool, invariant string) {
	if !ok && c.broken == "" {
		c.broken = invariant
	}
}

func (c *fieldChecker) name(field, s string, most int) {
	c.expect(len(s) <= most, "1: "+field+": more than "+strconv.Itoa(most)+" bytes")
}

func (c *fieldChecker) rate(field string, r Rate) { c.expect(r >= 0 && r <= maxRate, "2: "+field) }

func (c *fieldChecker) index(field string, i int) {
	c.expect(i >= UnknownIndex && i <= maxIndex, "2: "+field)
}

func (c *fieldChecker) bundle(field string, b Bundle) {
	c.expect(b.Links >= 0 && b.Links <= maxCount, "2: "+field+".links")
	c.rate(field+".rate", b.Rate)
}

// Class returns equal strings for two topologies that look the same from any third one,
// apart from the host: those of GPUs at equal positions of equal hosts. A large fleet
// has few classes. It is "" for a Topology that is not Known.
func (s Topology) Class() string {
	if !s.Known {
		return ""
	}
	b := make([]byte, 0, 256)
	word := func(words ...string) {
		for _, w := range words {
			b = append(strconv.AppendInt(b, int64(len(w)), 10), ':')
			b = append(b, w...)
		}
	}
	number := func(numbers ...int64) {
		for _, n := range numbers {
			b = append(strconv.AppendInt(b, n, 10), ' ')
		}
	}
	flag := func(flags ...bool) {
		n := int64(0)
		for _, f := range flags {
			n *= 2
			if f {
				n++
			}
		}
		number(n)
	}
	word(s.CUDA, s.Verbs)
	number(int64(s.TCP))
	flag(s.GPU != nil, s.RDMA != nil, s.PeerMemory)
	if p := s.RDMA; p != nil {
		word(p.Name, p.Layer, p.Subnet)
		number(int64(p.Rate), int64(p.Distance))
	}
	if g := s.GPU; g != nil {
		// A UUID is unique. If the address on the bus distinguishes the GPUs of a host, the UUID
		// is left out.
		if word(g.Address); g.Address == "" {
			word(g.UUID)
		}
		word(g.Lost)
		flag(g.Absent, g.MIG, g.UUID != "")
		number(int64(g.Index), int64(g.Copy), int64(g.PCIe), int64(g.Switched.Links), int64(g.Switched.Rate))
		for _, p := range g.Peers {
			word(p.Address)
			number(int64(p.Index), int64(p.NVLinks.Links), int64(p.NVLinks.Rate), int64(p.Distance))
			flag(p.Asked, p.Read, p.Write, p.NVLink)
		}
	}
	return string(b)
}

// Equal reports whether two topologies are equal.
func (s Topology) Equal(o Topology) bool {
	if s.Host != o.Host || s.Known != o.Known || (s.GPU == nil) != (o.GPU == nil) || s.Class() != o.Class() {
		return false
	}
	return s.GPU == nil || s.GPU.UUID == o.GPU.UUID && s.GPU.Index == o.GPU.Index
}

// refersTo reports whether a peer's entry describes that GPU.
func (p Peer) refersTo(g *GPU) bool {
	if p.Address != "" && g.Address != "" {
		return strings.EqualFold(p.Address, g.Address)
	}
	return p.Index != UnknownIndex && p.Index == g.Index
}

// peer returns the GPU's entry for another one, and whether it has one.
func (g *GPU) peer(o *GPU) (Peer, bool) {
	for _, p := range g.Peers {
		if p.refersTo(o) {
			return p, true
		}
	}
	return Peer{}, false
}
