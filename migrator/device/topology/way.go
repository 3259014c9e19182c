package topology

import (
	"fmt"

	"github.com/cascadeinfer/cascade/policies"
)

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
		return fmt.Sprintf("kind %d", uint8(k))
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
	return fmt.Errorf("no way is called %q", text)
}

// The transports, by the names that migrators know them by.
const (
	TransportCUDA  = "cuda"
	TransportShm   = "shm"
	TransportVerbs = "verbs"
	TransportTCP   = "tcp"
)

// Way is one way for a pair of replicas, open or not.
type Way struct {
	Kind      Kind            `json:"kind"`
	Transport string          `json:"transport"`
	Rate      Rate            `json:"rate"`       // estimated; 0 for unknown or closed
	Latency   policies.Micros `json:"latency_us"` // estimated, before the first byte
	// Why says what the way goes over, or, when Closed, what it lacks.
	Why    string `json:"why"`
	Closed bool   `json:"closed,omitempty"`
}

// What an estimate takes for granted.
const (
	// hostCopy is one thread's copy in host memory; tcpStream, one connection.
	hostCopy  = 10 * Gigabyte
	tcpStream = 4 * Gigabyte
	// gpuCopy is a copy within a GPU that does not tell its memory's speed; slot
	// and port stand for a PCIe slot and an RDMA port that do not tell theirs.
	gpuCopy = 500 * Gigabyte
	slot    = 8 * Gigabyte
	port    = 10 * Gigabyte
)

// The latencies are of the order of what transports have measured.
var latencies = [...]policies.Micros{
	SameGPU: 10, NVLinked: 10, PeerPCIe: 15, ViaHost: 40, RDMA: 10, RDMABounce: 50, TCP: 100,
}

// usable is what is left of a data sheet's rate.
func usable(r Rate) Rate { return r / 5 * 4 }

// least is the smallest of the rates that are known.
func least(rates ...Rate) Rate {
	out := Rate(0)
	for _, r := range rates {
		if r > 0 && (out == 0 || r < out) {
			out = r
		}
	}
	return out
}

func open(k Kind, transport string, r Rate, format string, args ...any) Way {
	return Way{Kind: k, Transport: transport, Rate: r, Latency: latencies[k], Why: fmt.Sprintf(format, args...)}
}

func closed(k Kind, transport string, format string, args ...any) Way {
	return Way{Kind: k, Transport: transport, Why: fmt.Sprintf(format, args...), Closed: true}
}

// end is one side of a pair.
type end struct {
	place   Place
	machine *Machine // nil: nothing is known of it
	gpu     *GPU     // nil: the memory is the host's, or the GPU is not there
}

func (e end) onGPU() bool { return e.place.GPU != Unknown }

// pcie is the rate of the GPU's slot; host memory has none.
func (e end) pcie() Rate {
	if e.gpu == nil {
		return 0
	}
	if r := e.gpu.PCI.Link.Rate(); r > 0 {
		return usable(r)
	}
	return slot
}

// cuda is the way from GPU to GPU on one machine.
func cuda(a, b end) Way {
	if !a.onGPU() || !b.onGPU() {
		return closed(SameGPU, TransportCUDA, "not both replicas are on a GPU")
	}
	kind := PeerPCIe
	if a.place.GPU == b.place.GPU {
		kind = SameGPU
	}
	switch why := a.machine.lacks(CUDA); {
	case why != "":
		return closed(kind, TransportCUDA, "%s: %s", CUDA, why)
	case a.gpu == nil || b.gpu == nil:
		return closed(kind, TransportCUDA, "%s is not on the machine", missingGPU(a, b))
	}
	for _, e := range [...]end{a, b} {
		if e.gpu.Health.Lost != "" {
			return closed(kind, TransportCUDA, "GPU %d: %s", e.gpu.Index, e.gpu.Health.Lost)
		}
		if e.gpu.MIG {
			return closed(kind, TransportCUDA, "GPU %d is divided (MIG): its instances do not see each other's memory", e.gpu.Index)
		}
	}
	if kind == SameGPU {
		if r := a.gpu.Copy; r > 0 {
			return open(SameGPU, TransportCUDA, usable(r), "both are on GPU %d", a.gpu.Index)
		}
		return open(SameGPU, TransportCUDA, gpuCopy, "both are on GPU %d", a.gpu.Index)
	}
	peer, asked := a.machine.peer(a.gpu.Index, b.gpu.Index)
	if rate, over := nvlink(a.gpu, b.gpu); rate > 0 {
		if asked && !peer.NVLink && !peer.Read {
			return closed(NVLinked, TransportCUDA, "%s, but the driver does not let one read the other", over)
		}
		return open(NVLinked, TransportCUDA, usable(rate), "%s", over)
	}
	d := Between(a.gpu.PCI, b.gpu.PCI)
	if d == Far && asked {
		d = peer.Distance
	}
	rate := least(a.pcie(), b.pcie())
	switch {
	case !asked:
		return closed(PeerPCIe, TransportCUDA, "no NVLink between them, and the driver was not asked about PCIe")
	case !peer.Read && !peer.Write:
		return closed(PeerPCIe, TransportCUDA, "no NVLink between them, and the driver refuses P2P over PCIe (%s)", d.words())
	case d >= System && d != Far:
		return closed(PeerPCIe, TransportCUDA, "%s lie between them: over both sockets P2P is slower than host memory", d.words())
	case d >= Bridge:
		rate /= 2 // what root complexes forward is well below the link
	}
	return open(PeerPCIe, TransportCUDA, rate, "P2P over PCIe: %s between them", d.words())
}

func missingGPU(a, b end) string {
	if a.gpu == nil {
		return fmt.Sprintf("GPU %d", a.place.GPU)
	}
	return fmt.Sprintf("GPU %d", b.place.GPU)
}

// peer is what the driver says of a pair, and whether it says anything.
func (m *Machine) peer(from, to int) (Peer, bool) {
	for _, p := range m.Peers {
		if p.From == from && p.To == to {
			return p, true
		}
	}
	return Peer{}, false
}

// nvlink is the rate over NVLink and which links carry it: those that join the
// two, else those of each into the switches.
func nvlink(a, b *GPU) (Rate, string) {
	direct, count := Rate(0), 0
	for _, l := range a.NVLinks {
		if !l.Switch && b.PCI.Address != "" && l.Remote == b.PCI.Address && l.Active {
			direct, count = direct+l.Rate(), count+1
		}
	}
	if direct > 0 {
		return direct, fmt.Sprintf("%s join them", links(count))
	}
	from, n := switched(a)
	to, m := switched(b)
	if from == 0 || to == 0 {
		return 0, ""
	}
	return min(from, to), fmt.Sprintf("%s through NVSwitch", links(min(n, m)))
}

func switched(g *GPU) (rate Rate, count int) {
	for _, l := range g.NVLinks {
		if l.Switch && l.Active {
			rate, count = rate+l.Rate(), count+1
		}
	}
	return rate, count
}

func links(n int) string {
	if n == 1 {
		return "1 NVLink"
	}
	return fmt.Sprintf("%d NVLinks", n)
}

// shm is the way through one machine's memory.
func shm(a, b end) Way {
	if !a.onGPU() && !b.onGPU() {
		return open(ViaHost, TransportShm, hostCopy, "both pools are in the machine's memory: one copy")
	}
	// Down, and up again: two transfers and the bytes are in host memory between.
	rate := least(a.pcie(), b.pcie(), hostCopy) / 2
	if !a.onGPU() || !b.onGPU() {
		return open(ViaHost, TransportShm, least(a.pcie(), b.pcie(), hostCopy), "one pool is in the machine's memory")
	}
	return open(ViaHost, TransportShm, rate, "out of one GPU into pinned memory, and into the other")
}

// nearest is the RDMA port that is up and lies nearest to the replica's memory;
// the faster one among equals, then the first.
func (e end) nearest() (best *NIC, d Distance) {
	for i := range e.machine.NICs {
		n := &e.machine.NICs[i]
		if n.RDMA == "" || !n.Up {
			continue
		}
		away := Far
		if e.gpu != nil {
			away = Between(e.gpu.PCI, n.PCI)
		}
		if best == nil || away < d || away == d && n.Rate > best.Rate {
			best, d = n, away
		}
	}
	return best, d
}

// verbs are the ways by RDMA, GPUDirect first.
func verbs(a, b end) []Way {
	shut := func(format string, args ...any) []Way {
		return []Way{closed(RDMABounce, TransportVerbs, format, args...)}
	}
	for _, e := range [...]end{a, b} {
		if e.machine == nil {
			return shut("nothing is known of node %s", e.place.Node)
		}
		if why := e.machine.lacks(Verbs); why != "" {
			return shut("%s on node %s: %s", Verbs, e.place.Node, why)
		}
	}
	from, near := a.nearest()
	to, far := b.nearest()
	switch {
	case from == nil:
		return shut("node %s has no RDMA port that is up", a.place.Node)
	case to == nil:
		return shut("node %s has no RDMA port that is up", b.place.Node)
	case from.RDMA != to.RDMA:
		return shut("%s of node %s speaks %s, %s of node %s %s", from.Name, a.place.Node, from.RDMA, to.Name, b.place.Node, to.RDMA)
	}
	rate := usable(least(from.Rate, to.Rate))
	if rate == 0 {
		rate = port
	}
	over := fmt.Sprintf("%s to %s over %s", from.Name, to.Name, from.RDMA)
	bounce := open(RDMABounce, TransportVerbs, least(rate, hostCopy), "%s, by way of host memory", over)
	if !a.onGPU() && !b.onGPU() {
		bounce.Why = over + ": the pools are in host memory"
		return []Way{bounce}
	}
	return []Way{direct(a, b, near, far, least(rate, a.pcie(), b.pcie()), over), bounce}
}

// direct is the way by GPUDirect.
func direct(a, b end, near, far Distance, rate Rate, over string) Way {
	for _, e := range [...]struct {
		end
		d Distance
	}{{a, near}, {b, far}} {
		switch {
		case !e.onGPU():
			return closed(RDMA, TransportVerbs, "the pool of %s is in host memory", e.place.Replica)
		case e.gpu == nil:
			return closed(RDMA, TransportVerbs, "GPU %d is not on node %s", e.place.GPU, e.place.Node)
		case e.gpu.Health.Lost != "":
			return closed(RDMA, TransportVerbs, "GPU %d of node %s: %s", e.gpu.Index, e.place.Node, e.gpu.Health.Lost)
		case e.machine.PeerMemory == "":
			return closed(RDMA, TransportVerbs, "node %s offers NICs no GPU memory (neither nvidia_peermem nor dma-buf)", e.place.Node)
		case e.d >= System:
			return closed(RDMA, TransportVerbs, "on node %s the way from GPU %d to its nearest NIC: %s", e.place.Node, e.gpu.Index, e.d.words())
		}
	}
	if max(near, far) >= Bridge {
		rate /= 2
	}
	return open(RDMA, TransportVerbs, rate, "%s; GPU to NIC: %s", over, max(near, far).words())
}

// tcp is the way that is always open.
func tcp(a, b end, same bool) Way {
	if same {
		return open(TCP, TransportTCP, tcpStream, "loopback")
	}
	rate, over := tcpStream, "one connection between the nodes"
	for _, e := range [...]end{a, b} {
		if e.machine == nil {
			continue
		}
		fastest := Rate(0)
		for _, n := range e.machine.NICs {
			if n.RDMA == "" && n.Up && !n.Virtual {
				fastest = max(fastest, n.Rate)
			}
		}
		if fastest > 0 && usable(fastest) < rate {
			rate, over = usable(fastest), fmt.Sprintf("the fastest link of node %s bounds it", e.place.Node)
		}
	}
	return open(TCP, TransportTCP, rate, "%s", over)
}
