package links

import (
	"math/bits"
	"strconv"
	"strings"
)

// Assumptions of the estimates.
const (
	// hostCopy is one thread's copy rate in host memory, tcpStream the rate of one connection.
	hostCopy  = 10 * Gigabyte
	tcpStream = 4 * Gigabyte
	// gpuCopy is the copy rate within a GPU whose memory speed is unknown; pcieSlot and
	// rdmaPort are for a PCIe slot and an RDMA port of unknown speed.
	gpuCopy  = 500 * Gigabyte
	pcieSlot = 8 * Gigabyte
	rdmaPort = 10 * Gigabyte
)

// usable returns the usable part of a data sheet's rate; a known rate stays known.
func usable(r Rate) Rate { return max(min(r, 1), r/5*4) }

// half returns half of a known rate.
func half(r Rate) Rate { return max(1, r/2) }

// smallest returns the smallest known rate.
func smallest(rates ...Rate) Rate {
	out := Rate(0)
	for _, r := range rates {
		if r > 0 && (out == 0 || r < out) {
			out = r
		}
	}
	return out
}

// series returns the rate of steps that bytes pass one after the other, each starting
// when the previous one has ended; steps of unknown rate take no time.
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

// Paths returns the paths from one replica to another in order of preference. The first
// that is not closed should be used; there always is one, and its rate is known. Equal
// topologies give equal paths.
func Paths(from, to Topology) []Path {
	a, b := &from, &to
	if from.Host == to.Host {
		return []Path{cuda(a, b), shm(a, b), tcp(a, b)}
	}
	return append(verbs(a, b), tcp(a, b))
}

// Rates are the fleet file's rates: defaults for unknown links, and a bound for the
// others. A path with a default rate has no latency, so only the rate distinguishes it.
type Rates struct {
	// SameHost is the rate between replicas of one host, BetweenHosts that between two
	// hosts, if the topology of one of the two is unknown. 0 means the estimate of Paths.
	SameHost     Rate `json:"same_host,omitempty"`
	BetweenHosts Rate `json:"between_hosts,omitempty"`
	// MaxBetweenHosts bounds the rate between hosts, whatever the NICs report. 0 means no
	// bound.
	MaxBetweenHosts Rate `json:"max_between_hosts,omitempty"`
}

// BestPath returns the path to use between two replicas, and its rate.
func (d Rates) BestPath(from, to Topology) Path {
	w := BestPath(Paths(from, to))
	same := from.Host == to.Host
	if !from.Known || !to.Known {
		rate := d.BetweenHosts
		if same {
			rate = d.SameHost
		}
		if rate > 0 {
			w.Rate, w.Latency, w.Reason = rate, 0, w.Reason+"; the topology of one is unknown: the rate is the fleet file's"
		}
		return w
	}
	if !same && d.MaxBetweenHosts > 0 && w.Rate > d.MaxBetweenHosts {
		w.Rate, w.Reason = d.MaxBetweenHosts, w.Reason+"; the fleet file bounds the rate"
	}
	return w
}

func number(n int) string { return strconv.Itoa(n) }

// pcie returns the rate of the GPU's slot; 0 for host memory.
func (s *Topology) pcie() Rate {
	if s.GPU == nil {
		return 0
	}
	if r := s.GPU.PCIe; r > 0 {
		return usable(r)
	}
	return pcieSlot
}

// packing returns the rate at which the GPU copies blocks of the pool to or from host
// memory: its kernel uses PCIe to pinned memory, and the processor copies from there. A
// pool in host memory needs none of it.
func (s *Topology) packing() Rate {
	if s.GPU == nil {
		return 0
	}
	return series(s.pcie(), hostCopy)
}

// onGPUs describes how many of the two pools are on GPUs; "" for none.
func onGPUs(a, b *Topology) string {
	switch {
	case a.GPU == nil && b.GPU == nil:
		return ""
	case a.GPU == nil || b.GPU == nil:
		return "one pool is on a GPU"
	}
	return "both pools are on GPUs"
}

// one reports whether two ends on one host are on one GPU, or why that is
// unknown.
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

// cuda returns the path from GPU to GPU on one host.
func cuda(a, b *Topology) Path {
	if !a.Known || !b.Known {
		return closedPath(SameGPU, TransportCUDA, "the topology of host "+a.Host+" is unknown")
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

// betweenGPUs returns the path between two GPUs of one host. The receiver's GPU reads
// the source's memory and no GPU writes into another's, so what the driver reports
// about writing is not used. A pair is open in both directions or in neither, as it is
// for the driver.
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
		rate = half(rate) // a root complex forwards well below the link's rate
	}
	return openPath(PeerPCIe, TransportCUDA, rate, "P2P over PCIe: "+d.description()+" between them"+doubt)
}

// joiningLinks returns the NVLinks between two GPUs: those that both ends list, if both
// list each other.
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

// nvlink returns the rate over NVLink and which links carry it: those between the two,
// otherwise those of each into the switches.
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

// shm returns the path through one host's memory: the receiver maps the source's pool.
func shm(a, b *Topology) Path {
	if on := onGPUs(a, b); on != "" {
		return closedPath(ViaHost, TransportShm, on+": shm maps pools in the machine's memory alone")
	}
	return openPath(ViaHost, TransportShm, hostCopy, "both pools are in the machine's memory: one copy")
}

// verbs returns the paths by RDMA, GPUDirect first.
func verbs(a, b *Topology) []Path {
	shut := func(why string) []Path { return []Path{closedPath(RDMABounce, TransportVerbs, why)} }
	for _, s := range [...]*Topology{a, b} {
		if !s.Known {
			return shut("the topology of host " + s.Host + " is unknown")
		}
		if s.Verbs != "" {
			return shut("on host " + s.Host + ": " + s.Verbs)
		}
	}
	for _, s := range [...]*Topology{a, b} {
		if s.RDMA == nil {
			return shut("host " + s.Host + " has no RDMA port that is up")
		}
	}
	from, to := a.RDMA, b.RDMA
	switch {
	case from.Layer != to.Layer:
		return shut(from.Name + " of host " + a.Host + " speaks " + from.Layer + ", " + to.Name + " of host " + b.Host + " " + to.Layer)
	case from.Subnet != "" && to.Subnet != "" && from.Subnet != to.Subnet:
		return shut(from.Name + " of host " + a.Host + " is in fabric " + from.Subnet + ", " + to.Name + " of host " + b.Host + " in " + to.Subnet)
	}
	rate := usable(smallest(from.Rate, to.Rate))
	if rate == 0 {
		rate = rdmaPort
	}
	over := from.Name + " to " + to.Name + " over " + from.Layer
	// A GPU that no NIC reaches packs blocks into host memory while the NICs carry the
	// previous blocks and the other GPU unpacks those before. So the rate is that of the
	// slowest step, or of a processor, which copies if the GPU cannot reach that memory and
	// checksums what arrives in a pool there.
	bounce := openPath(RDMABounce, TransportVerbs, smallest(rate, a.pcie(), b.pcie(), hostCopy), over+", through host memory")
	if a.GPU == nil && b.GPU == nil {
		bounce.Reason = over + ": the pools are in host memory"
		return []Path{bounce}
	}
	return []Path{direct(a, b, smallest(rate, a.pcie(), b.pcie()), over), bounce}
}

// direct returns the path by GPUDirect.
func direct(a, b *Topology, rate Rate, over string) Path {
	for _, s := range [...]*Topology{a, b} {
		switch g := s.GPU; {
		case g == nil:
			return closedPath(RDMA, TransportVerbs, "the pool on host "+s.Host+" is in host memory")
		case g.Absent:
			return closedPath(RDMA, TransportVerbs, "GPU "+number(g.Index)+" is not on host "+s.Host)
		case g.Lost != "":
			return closedPath(RDMA, TransportVerbs, "GPU "+number(g.Index)+" of host "+s.Host+": "+g.Lost)
		case !s.PeerMemory:
			return closedPath(RDMA, TransportVerbs, "host "+s.Host+" offers NICs no GPU memory (dma-buf)")
		case s.RDMA.Distance >= System || s.RDMA.Distance == 0:
			return closedPath(RDMA, TransportVerbs, "on host "+s.Host+" the distance from GPU "+number(g.Index)+" to its nearest NIC: "+s.RDMA.Distance.description())
		}
	}
	d := max(a.RDMA.Distance, b.RDMA.Distance)
	if d >= RootComplex {
		rate = half(rate)
	}
	return openPath(RDMA, TransportVerbs, rate, over+"; GPU to NIC: "+d.description())
}

// tcp returns the path that is always open. A GPU's blocks are packed before they are
// sent and unpacked after they have arrived: each end does its steps one after the
// other, while the two ends work at the same time.
func tcp(a, b *Topology) Path {
	rate := min(series(tcpStream, a.packing()), series(tcpStream, b.packing()))
	over := "one connection between the hosts"
	if a.Host == b.Host {
		over = "loopback"
	} else {
		for _, s := range [...]*Topology{a, b} {
			if s.TCP > 0 && usable(s.TCP) < rate {
				rate, over = usable(s.TCP), "the fastest link of host "+s.Host+" bounds it"
			}
		}
	}
	if on := onGPUs(a, b); on != "" {
		over += "; " + on + ": through host memory"
	}
	return openPath(TCP, TransportTCP, rate, over)
}
