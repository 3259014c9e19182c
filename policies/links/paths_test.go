package links_test

import (
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/policies/links"
)

const gigabyte = links.Gigabyte

// gpuOn returns a known topology of host h with a GPU.
func gpuOn(g links.GPU) links.Topology { return links.Topology{Host: "h", Known: true, GPU: &g} }

// nicOn returns a known topology of a host with a GPU, an RDMA port and a TCP rate.
func nicOn(host string, p links.Port) links.Topology {
	return links.Topology{Host: host, Known: true, PeerMemory: true, RDMA: &p, GPU: &links.GPU{PCIe: 50 * gigabyte}}
}

// TestFirstPath checks the first path of pairs, and the same in the other direction.
func TestFirstPath(t *testing.T) {
	peer := func(p links.Peer) links.GPU {
		p.Index = 1
		return links.GPU{Index: 0, PCIe: 30 * gigabyte, Peers: []links.Peer{p}}
	}
	second := links.GPU{Index: 1, PCIe: 20 * gigabyte}
	readable := func(d links.Distance) links.Peer { return links.Peer{Asked: true, Read: true, Distance: d} }
	port := links.Port{Name: "n", Layer: "InfiniBand", Rate: 40 * gigabyte, Distance: links.Switch}
	with := func(edit func(p *links.Port)) links.Port { p := port; edit(&p); return p }
	switched := links.GPU{Index: 0, Switched: links.Bundle{Links: 4, Rate: 100 * gigabyte}, Peers: []links.Peer{{Index: 1, Asked: true, Read: true, Distance: links.Switch}}}
	for name, c := range map[string]struct {
		a, b   links.Topology
		kind   links.Kind
		rate   links.Rate // 0 means closed
		reason string
	}{
		"one UUID":                {gpuOn(links.GPU{UUID: "u", Address: "g"}), gpuOn(links.GPU{UUID: "u", Address: "g"}), links.SameGPU, 500 * gigabyte, "both are on GPU 0"},
		"one UUID, other indexes": {gpuOn(links.GPU{UUID: "u"}), gpuOn(links.GPU{UUID: "u", Index: 1}), links.SameGPU, 500 * gigabyte, "both are on GPU"},
		"two UUIDs, no address":   {gpuOn(links.GPU{UUID: "u"}), gpuOn(links.GPU{UUID: "v"}), links.PeerPCIe, 0, "was not asked"},
		"two UUIDs, one address":  {gpuOn(links.GPU{UUID: "u", Address: "g"}), gpuOn(links.GPU{UUID: "v", Address: "G"}), links.PeerPCIe, 0, "contradict"},
		"one UUID is unknown":     {gpuOn(links.GPU{UUID: "u", Address: "g"}), gpuOn(links.GPU{Address: "g"}), links.SameGPU, 500 * gigabyte, "both are on GPU 0"},
		"one address is unknown":  {gpuOn(links.GPU{Address: "g"}), gpuOn(links.GPU{}), links.SameGPU, 500 * gigabyte, "both are on GPU 0"},
		"two addresses":           {gpuOn(links.GPU{Address: "g"}), gpuOn(links.GPU{Address: "f"}), links.PeerPCIe, 0, "was not asked"},
		"two indexes":             {gpuOn(links.GPU{}), gpuOn(second), links.PeerPCIe, 0, "was not asked"},
		"slowest copy":            {gpuOn(links.GPU{Copy: 100 * gigabyte}), gpuOn(links.GPU{Copy: 200 * gigabyte}), links.SameGPU, 80 * gigabyte, "both are on GPU 0"},
		"lost, on one GPU":        {gpuOn(links.GPU{Lost: "it fell off the bus"}), gpuOn(links.GPU{}), links.SameGPU, 0, "it fell off the bus"},
		"one is unknown":          {gpuOn(links.GPU{}), links.Topology{Host: "h", GPU: &links.GPU{}}, links.SameGPU, 0, "the topology of host h is unknown"},

		"one direction was asked": {gpuOn(peer(readable(links.Switch))), gpuOn(second), links.PeerPCIe, 16 * gigabyte, "P2P over PCIe: one PCIe switch"},
		"several switches":        {gpuOn(peer(readable(links.Switches))), gpuOn(second), links.PeerPCIe, 16 * gigabyte, "several PCIe switches"},
		"a root complex":          {gpuOn(peer(readable(links.RootComplex))), gpuOn(second), links.PeerPCIe, 8 * gigabyte, "the root complex"},
		"two sockets":             {gpuOn(peer(readable(links.System))), gpuOn(second), links.PeerPCIe, 0, "slower than host memory"},
		"not readable":            {gpuOn(peer(links.Peer{Asked: true, Distance: links.Switch})), gpuOn(second), links.PeerPCIe, 0, "does not let one read"},
		"another GPU's peer":      {gpuOn(links.GPU{Peers: []links.Peer{{Index: 2, Asked: true, Read: true}}}), gpuOn(second), links.PeerPCIe, 0, "was not asked"},
		"a peer of no index":      {gpuOn(links.GPU{Peers: []links.Peer{{Index: links.UnknownIndex, Asked: true, Read: true}}}), gpuOn(links.GPU{Index: links.UnknownIndex}), links.PeerPCIe, 0, "was not asked"},
		"a peer by its address":   {gpuOn(links.GPU{Address: "f", Peers: []links.Peer{{Index: 3, Address: "g", Asked: true, Read: true, Distance: links.Switch}}}), gpuOn(links.GPU{Address: "g", Index: 1}), links.PeerPCIe, 8 * gigabyte, "one PCIe switch"},
		"one end has no address":  {gpuOn(links.GPU{Address: "f", Peers: []links.Peer{{Index: 1, Address: "g", Asked: true, Read: true, Distance: links.Switch}}}), gpuOn(links.GPU{Index: 1}), links.PeerPCIe, 8 * gigabyte, "one PCIe switch"},
		"one GPU has switches":    {gpuOn(switched), gpuOn(second), links.PeerPCIe, 8 * gigabyte, "P2P over PCIe"},
		"both GPUs have switches": {gpuOn(switched), gpuOn(links.GPU{Index: 1, Switched: links.Bundle{Links: 1, Rate: 25 * gigabyte}}), links.NVLinked, 20 * gigabyte, "1 NVLink through NVSwitch"},

		"RDMA":                   {nicOn("h", port), nicOn("i", port), links.RDMA, 32 * gigabyte, "GPU to NIC: one PCIe switch"},
		"RDMA, port unknown":     {nicOn("h", with(func(p *links.Port) { p.Rate = 0 })), nicOn("i", with(func(p *links.Port) { p.Rate = 0 })), links.RDMA, 10 * gigabyte, "n to n over InfiniBand"},
		"RDMA, several switches": {nicOn("h", with(func(p *links.Port) { p.Distance = links.Switches })), nicOn("i", port), links.RDMA, 32 * gigabyte, "several PCIe switches"},
		"RDMA, a root complex":   {nicOn("h", with(func(p *links.Port) { p.Distance = links.RootComplex })), nicOn("i", port), links.RDMA, 16 * gigabyte, "the root complex"},
		"RDMA, two sockets":      {nicOn("h", with(func(p *links.Port) { p.Distance = links.System })), nicOn("i", port), links.RDMA, 0, "two NUMA nodes"},
		"RDMA, unknown":          {nicOn("h", with(func(p *links.Port) { p.Distance = 0 })), nicOn("i", port), links.RDMA, 0, "not known"},
		"one fabric is unknown":  {nicOn("h", with(func(p *links.Port) { p.Subnet = "1" })), nicOn("i", port), links.RDMA, 32 * gigabyte, "n to n"},
		"two fabrics":            {nicOn("h", with(func(p *links.Port) { p.Subnet = "1" })), nicOn("i", with(func(p *links.Port) { p.Subnet = "2" })), links.RDMABounce, 0, "fabric"},
		"pools in host memory":   {links.Topology{Host: "h", Known: true, RDMA: &port}, links.Topology{Host: "i", Known: true, RDMA: &port}, links.RDMABounce, 10 * gigabyte, "the pools are in host memory"},
	} {
		for _, pair := range [][2]links.Topology{{c.a, c.b}, {c.b, c.a}} {
			got := links.Paths(pair[0], pair[1])[0]
			if got.Kind != c.kind || got.Rate != c.rate || got.Closed != (c.rate == 0) || !strings.Contains(got.Reason, c.reason) {
				t.Errorf("%s: %+v, want %v at %v: %s", name, got, c.kind, c.rate, c.reason)
			}
		}
	}
}
