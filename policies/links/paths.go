package links

import (
	"math/bits"
	"strconv"
	"strings"
)

// What an estimate takes for granted.
const (
	// hostCopy is one thread's copy in host memory; tcpStream, one connection.
	hostCopy  = 10 * Gigabyte
	tcpStream = 4 * Gigabyte
	// gpuCopy is a copy within a GPU that does not tell its memory's speed; slot
	// and port stand for a PCIe slot and an RDMA port that do not tell theirs.
	gpuCopy  = 500 * Gigabyte
	pcieSlot = 8 * Gigabyte
	rdmaPort = 10 * Gigabyte
)

// usable is what is left of a data sheet's rate; a rate that is known stays so.
func usable(r Rate) Rate { return max(min(r, 1), r/5*4) }

// half is of a rate that is known.
func half(r Rate) Rate { return max(1, r/2) }

// smallest is the smallest of the rates that are known.
func smallest(rates ...Rate) Rate {
	out := Rate(0)
	for _, r := range rates {
		if r > 0 && (out == 0 || r < out) {
			out = r
		}
	}
	return out
}

// series is the rate of steps that bytes take one after the other, of which none
// begins before the one in front has ended; steps without a rate take no time.
func series(rates ...Rate) Rate {
	out := Rate(0)
	for _, r := range rates {
		switch {
		case r <= 0:
		case out == 0:
			out = r
		default:
			high, low := bits.Mul64(uint64(out), uint64(r))
			q, _ := bits.Div64(high, low, uint64(out+r))
			out = max(1, Rate(q))
		}
	}
	return out
}

// Paths are the ways from one replica to another in order of preference. The first
// that is not closed is to be used; there always is one, of a known rate. Equal sites
// give equal ways.
func Paths(from, to Topology) []Path {
	a, b := &from, &to
	if from.Host == to.Host {
		return []Path{cuda(a, b), shm(a, b), tcp(a, b)}
	}
	return append(verbs(a, b), tcp(a, b))
}

// Rates say how fast ways are of which nothing is known, and bound the others. A way
// with a rate by default has no latency: nothing but the rate sets it apart.
type Rates struct {
	// SameHost is the rate between replicas of one node, Between that of two nodes, where
	// nothing is known of one of the two. 0: what Ways says.
	SameHost     Rate `json:"node,omitempty"`
	BetweenHosts Rate `json:"between,omitempty"`
	// MaxBetweenHosts is the most that ways between nodes are taken for, whatever the NICs say.
	// 0: no bound.
	MaxBetweenHosts Rate `json:"bound,omitempty"`
}

// BestPath is the way to use between two replicas, and its rate.
func (d Rates) BestPath(from, to Topology) Path {
	w := BestPath(Paths(from, to))
	same := from.Host == to.Host
	if !from.Known || !to.Known {
		rate := d.BetweenHosts
		if same {
			rate = d.SameHost
		}
		if rate > 0 {
			w.Rate, w.Latency, w.Reason = rate, 0, w.Reason+"; one has not told what it has: the rate is the fleet file's"
		}
		return w
	}
	if !same && d.MaxBetweenHosts > 0 && w.Rate > d.MaxBetweenHosts {
		w.Rate, w.Reason = d.MaxBetweenHosts, w.Reason+"; the fleet file bounds the rate"
	}
	return w
}

// unknown names the end of which nothing is known.
func unknown(a, b *Topology) string {
	if a.Known {
		a = b
	}
	return "nothing is known of node " + a.Host
}

func number(n int) string { return strconv.Itoa(n) }

// pcie is the rate of the GPU's slot; host memory has none.
func (s *Topology) pcie() Rate {
	if s.GPU == nil {
		return 0
	}
	if r := s.GPU.PCIe; r > 0 {
		return usable(r)
	}
	return pcieSlot
}

// packing is the rate at which the GPU brings blocks of the pool into the host's memory,
// or fetches them from there: its kernel goes over PCIe to pinned memory, the processor
// copies from that. A pool in host memory needs none of it.
func (s *Topology) packing() Rate {
	if s.GPU == nil {
		return 0
	}
	return series(s.pcie(), hostCopy)
}

// onGPUs says how many of the two pools are on GPUs, for people; "" for none.
func onGPUs(a, b *Topology) string {
	switch {
	case a.GPU == nil && b.GPU == nil:
		return ""
	case a.GPU == nil || b.GPU == nil:
		return "one pool is on a GPU"
	}
	return "both pools are on GPUs"
}

// one says whether two ends on one machine are on one GPU, or why that cannot be
// told.
func one(a, b *GPU) (same bool, contradiction string) {
	switch {
	case a.UUID != "" && b.UUID != "":
		if same = a.UUID == b.UUID; !same && a.Address != "" && strings.EqualFold(a.Address, b.Address) {
			return false, "the two contradict each other about the GPU at " + a.Address
		}
		return same, ""
	case a.Address != "" && b.Address != "":
		return strings.EqualFold(a.Address, b.Address), ""
	}
	return a.Index == b.Index, ""
}

// cuda is the way from GPU to GPU on one machine.
func cuda(a, b *Topology) Path {
	if !a.Known || !b.Known {
		return closedPath(SameGPU, TransportCUDA, unknown(a, b))
	}
	if a.GPU == nil || b.GPU == nil {
		return closedPath(SameGPU, TransportCUDA, "not both replicas are on a GPU")
	}
	kind := PeerPCIe
	same, contradiction := one(a.GPU, b.GPU)
	if same {
		kind = SameGPU
	}
	for _, s := range [...]*Topology{a, b} {
		if s.CUDA != "" {
			return closedPath(kind, TransportCUDA, "libcuda.so.1: "+s.CUDA)
		}
	}
	for _, g := range [...]*GPU{a.GPU, b.GPU} {
		if g.Absent {
			return closedPath(kind, TransportCUDA, "GPU "+number(g.Index)+" is not on the machine")
		}
	}
	for _, g := range [...]*GPU{a.GPU, b.GPU} {
		if g.Lost != "" {
			return closedPath(kind, TransportCUDA, "GPU "+number(g.Index)+": "+g.Lost)
		}
		if g.MIG {
			return closedPath(kind, TransportCUDA, "GPU "+number(g.Index)+" is divided (MIG): its instances do not see each other's memory")
		}
	}
	if contradiction != "" {
		return closedPath(kind, TransportCUDA, contradiction)
	}
	if same {
		rate := gpuCopy
		if r := smallest(a.GPU.Copy, b.GPU.Copy); r > 0 {
			rate = usable(r)
		}
		return openPath(SameGPU, TransportCUDA, rate, "both are on GPU "+number(a.GPU.Index))
	}
	return betweenGPUs(a, b)
}

// betweenGPUs is the way between two GPUs of one machine. The receiver's GPU reads the
// source's memory, and nobody writes into another's: what the driver says of writing is
// of no use. A pair is open to both or to none, as it is for the driver.
func betweenGPUs(a, b *Topology) Path {
	there, said := a.GPU.peer(b.GPU)
	back, answered := b.GPU.peer(a.GPU)
	asked := there.Asked || back.Asked
	read := (!there.Asked || there.Read) && (!back.Asked || back.Read)
	joined, doubt := joiningLinks(there, said, back, answered)
	if rate, over := nvlink(a.GPU, b.GPU, joined); rate > 0 {
		if asked && !read {
			return closedPath(NVLinked, TransportCUDA, over+", but the driver does not let one read the other"+doubt)
		}
		return openPath(NVLinked, TransportCUDA, usable(rate), over+doubt)
	}
	d := farther(there.Distance, back.Distance)
	rate := smallest(a.pcie(), b.pcie())
	switch {
	case !asked:
		return closedPath(PeerPCIe, TransportCUDA, "no NVLink between them, and the driver was not asked about PCIe"+doubt)
	case !read:
		return closedPath(PeerPCIe, TransportCUDA, "no NVLink between them, and the driver does not let one read the other over PCIe ("+d.description()+")"+doubt)
	case d >= System && d != UnknownDistance:
		return closedPath(PeerPCIe, TransportCUDA, d.description()+" lie between them: over both sockets P2P is slower than host memory"+doubt)
	case d >= RootComplex:
		rate = half(rate) // what root complexes forward is well below the link
	}
	return openPath(PeerPCIe, TransportCUDA, rate, "P2P over PCIe: "+d.description()+" between them"+doubt)
}

// joiningLinks are the NVLinks that join two GPUs: those that both ends tell of, where
// both tell of each other.
func joiningLinks(there Peer, said bool, back Peer, answered bool) (b Bundle, doubt string) {
	switch {
	case !answered:
		return there.NVLinks, ""
	case !said:
		return back.NVLinks, ""
	case there.NVLinks == back.NVLinks:
		return there.NVLinks, ""
	}
	b = there.NVLinks
	if back.NVLinks.Rate < b.Rate {
		b = back.NVLinks
	}
	return b, "; the two contradict each other about NVLinks: " + number(there.NVLinks.Links) + " and " + number(back.NVLinks.Links)
}

// nvlink is the rate over NVLink and which links carry it: those that join the
// two, else those of each into the switches.
func nvlink(a, b *GPU, joined Bundle) (Rate, string) {
	if joined.Rate > 0 {
		return joined.Rate, nvlinks(joined.Links) + " join them"
	}
	if a.Switched.Rate == 0 || b.Switched.Rate == 0 {
		return 0, ""
	}
	return min(a.Switched.Rate, b.Switched.Rate), nvlinks(min(a.Switched.Links, b.Switched.Links)) + " through NVSwitch"
}

func nvlinks(n int) string {
	if n == 1 {
		return "1 NVLink"
	}
	return number(n) + " NVLinks"
}

// shm is the way through one machine's memory: the receiver maps the source's pool.
func shm(a, b *Topology) Path {
	if on := onGPUs(a, b); on != "" {
		return closedPath(ViaHost, TransportShm, on+": shm maps pools in the machine's memory alone")
	}
	return openPath(ViaHost, TransportShm, hostCopy, "both pools are in the machine's memory: one copy")
}

// verbs are the ways by RDMA, GPUDirect first.
func verbs(a, b *Topology) []Path {
	shut := func(why string) []Path { return []Path{closedPath(RDMABounce, TransportVerbs, why)} }
	for _, s := range [...]*Topology{a, b} {
		if !s.Known {
			return shut("nothing is known of node " + s.Host)
		}
		if s.Verbs != "" {
			return shut("on node " + s.Host + ": " + s.Verbs)
		}
	}
	for _, s := range [...]*Topology{a, b} {
		if s.RDMA == nil {
			return shut("node " + s.Host + " has no RDMA port that is up")
		}
	}
	from, to := a.RDMA, b.RDMA
	switch {
	case from.Layer != to.Layer:
		return shut(from.Name + " of node " + a.Host + " speaks " + from.Layer + ", " + to.Name + " of node " + b.Host + " " + to.Layer)
	case from.Subnet != "" && to.Subnet != "" && from.Subnet != to.Subnet:
		return shut(from.Name + " of node " + a.Host + " is in fabric " + from.Subnet + ", " + to.Name + " of node " + b.Host + " in " + to.Subnet)
	}
	rate := usable(smallest(from.Rate, to.Rate))
	if rate == 0 {
		rate = rdmaPort
	}
	over := from.Name + " to " + to.Name + " over " + from.Layer
	// A GPU that no NIC reaches packs blocks into host memory, while the NICs carry those
	// before and the other GPU takes in the ones before that: the slowest step is the rate,
	// or a processor's, which copies where the GPU does not reach that memory by itself,
	// and sums what comes into a pool there.
	bounce := openPath(RDMABounce, TransportVerbs, smallest(rate, a.pcie(), b.pcie(), hostCopy), over+", by way of host memory")
	if a.GPU == nil && b.GPU == nil {
		bounce.Reason = over + ": the pools are in host memory"
		return []Path{bounce}
	}
	return []Path{direct(a, b, smallest(rate, a.pcie(), b.pcie()), over), bounce}
}

// direct is the way by GPUDirect.
func direct(a, b *Topology, rate Rate, over string) Path {
	for _, s := range [...]*Topology{a, b} {
		switch g := s.GPU; {
		case g == nil:
			return closedPath(RDMA, TransportVerbs, "the pool on node "+s.Host+" is in host memory")
		case g.Absent:
			return closedPath(RDMA, TransportVerbs, "GPU "+number(g.Index)+" is not on node "+s.Host)
		case g.Lost != "":
			return closedPath(RDMA, TransportVerbs, "GPU "+number(g.Index)+" of node "+s.Host+": "+g.Lost)
		case !s.PeerMemory:
			return closedPath(RDMA, TransportVerbs, "node "+s.Host+" offers NICs no GPU memory (dma-buf)")
		case s.RDMA.Distance >= System || s.RDMA.Distance == 0:
			return closedPath(RDMA, TransportVerbs, "on node "+s.Host+" the way from GPU "+number(g.Index)+" to its nearest NIC: "+s.RDMA.Distance.description())
		}
	}
	d := max(a.RDMA.Distance, b.RDMA.Distance)
	if d >= RootComplex {
		rate = half(rate)
	}
	return openPath(RDMA, TransportVerbs, rate, over+"; GPU to NIC: "+d.description())
}

// tcp is the way that is always open. A GPU's blocks are packed before they are sent,
// and put into place when they have come: an end does one after the other, while the
// two ends are at work together.
func tcp(a, b *Topology) Path {
	rate := min(series(tcpStream, a.packing()), series(tcpStream, b.packing()))
	over := "one connection between the nodes"
	if a.Host == b.Host {
		over = "loopback"
	} else {
		for _, s := range [...]*Topology{a, b} {
			if s.TCP > 0 && usable(s.TCP) < rate {
				rate, over = usable(s.TCP), "the fastest link of node "+s.Host+" bounds it"
			}
		}
	}
	if on := onGPUs(a, b); on != "" {
		over += "; " + on + ": by way of host memory"
	}
	return openPath(TCP, TransportTCP, rate, over)
}
