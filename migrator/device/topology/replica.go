package topology

import (
	"cmp"
	"slices"

	"github.com/cascadeinfer/cascade/internal/cleantext"
	"github.com/cascadeinfer/cascade/policies/links"
)

// Topology is what a pair needs to know of a replica in that place, whose node the machine
// is. What does not fit into a links.Topology is cut: names and reasons, and the GPU's
// farthest peers.
func (m *Machine) Topology(p Place) links.Topology {
	s := links.Topology{Host: cleantext.Truncate(p.Node, links.MaxName), Known: true, CUDA: cleantext.Truncate(m.missingLibrary(CUDA), links.MaxText), PeerMemory: m.PeerMemory != ""}
	var pci *PCI
	if p.GPU != Unknown {
		s.GPU = &links.GPU{Index: p.GPU, Absent: true}
		if g := m.GPU(p.GPU); g != nil {
			s.GPU, pci = m.gpuView(g), &g.PCI
		}
	}
	s.RDMA, s.Verbs = m.selectPort(p.Adapter, pci)
	if lacks := m.missingLibrary(Verbs); lacks != "" && !p.Adapter.Off {
		s.Verbs = Verbs + ": " + lacks
	}
	s.Verbs = cleantext.Truncate(s.Verbs, links.MaxText)
	for _, n := range m.NICs {
		if n.RDMA == "" && n.Up && !n.Virtual {
			s.TCP = max(s.TCP, n.Rate)
		}
	}
	return s
}

// gpuView returns what other hosts need to know of a GPU.
func (m *Machine) gpuView(g *GPU) *links.GPU {
	out := &links.GPU{
		Index: g.Index, UUID: cleantext.Truncate(g.UUID, links.MaxText), Address: cleantext.Truncate(g.PCI.Address, links.MaxText), Lost: cleantext.Truncate(g.Health.Lost, links.MaxText), MIG: g.MIG, Copy: g.Copy, PCIe: g.PCI.Link.Rate(),
	}
	joined := map[string]links.Bundle{} // by the address of the other end
	for _, l := range g.NVLinks {
		switch {
		case !l.Active:
		case l.Switch:
			out.Switched.Links++
			out.Switched.Rate += l.Rate()
		case l.Remote != "":
			b := joined[l.Remote]
			joined[l.Remote] = links.Bundle{Links: b.Links + 1, Rate: b.Rate + l.Rate()}
		}
	}
	for i := range m.GPUs {
		o := &m.GPUs[i]
		if o == g || o.Index == Unknown {
			continue
		}
		p := links.Peer{Index: o.Index, Address: cleantext.Truncate(o.PCI.Address, links.MaxText), Distance: Between(g.PCI, o.PCI), NVLinks: joined[o.PCI.Address]}
		delete(joined, o.PCI.Address)
		if says, ok := m.peer(g.Index, o.Index); ok {
			p.Asked, p.Read, p.Write, p.NVLink = true, says.Read, says.Write, says.NVLink
			if p.Distance == links.UnknownDistance && says.Distance <= links.UnknownDistance {
				p.Distance = says.Distance
			}
		}
		out.Peers = append(out.Peers, p)
	}
	// A container sees only its own GPU, and the links that lead to others.
	for address, b := range joined {
		out.Peers = append(out.Peers, links.Peer{Index: Unknown, Address: cleantext.Truncate(address, links.MaxText), NVLinks: b})
	}
	slices.SortFunc(out.Peers, func(a, b links.Peer) int {
		return cmp.Or(cmp.Compare(b.NVLinks.Rate, a.NVLinks.Rate), cmp.Compare(a.Distance, b.Distance), cmp.Compare(a.Index, b.Index), cmp.Compare(a.Address, b.Address))
	})
	out.Peers = out.Peers[:min(len(out.Peers), links.MaxPeers)]
	return out
}

// peer returns what the driver knows of a pair of GPUs, if anything.
func (m *Machine) peer(from, to int) (Peer, bool) {
	for _, p := range m.Peers {
		if p.From == from && p.To == to {
			return p, true
		}
	}
	return Peer{}, false
}
