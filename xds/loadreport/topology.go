package loadreport

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/xds/api"
)

// MaxTopologyBytes is the largest message that Decode reads. A topology with one GPU of 16 takes
// about a kilobyte.
const MaxTopologyBytes = 16 << 10

// EncodeTopology returns the wire format of a topology.
func EncodeTopology(s links.Topology) *api.Topology {
	m := &api.Topology{Host: s.Host, Known: s.Known, Cuda: s.CUDA, Verbs: s.Verbs, PeerMemory: s.PeerMemory, Tcp: int64(s.TCP)}
	if p := s.RDMA; p != nil {
		m.Rdma = &api.TopologyPort{Name: p.Name, Layer: p.Layer, Subnet: p.Subnet, Rate: int64(p.Rate), Distance: uint32(p.Distance)}
	}
	g := s.GPU
	if g == nil {
		return m
	}
	m.Gpu = &api.TopologyGPU{
		Index: int32(g.Index), Uuid: g.UUID, Address: g.Address, Absent: g.Absent, Lost: g.Lost, Mig: g.MIG, Copy: int64(g.Copy), Pcie: int64(g.PCIe), Switched: encodeBundle(g.Switched),
	}
	for _, p := range g.Peers {
		m.Gpu.Peers = append(m.Gpu.Peers, &api.TopologyPeer{
			Index: int32(p.Index), Address: p.Address, Nvlinks: encodeBundle(p.NVLinks), Distance: uint32(p.Distance), Asked: p.Asked, Read: p.Read, Write: p.Write, Nvlink: p.NVLink,
		})
	}
	return m
}

func encodeBundle(b links.Bundle) *api.TopologyBundle {
	if b == (links.Bundle{}) {
		return nil
	}
	return &api.TopologyBundle{Links: uint32(b.Links), Rate: int64(b.Rate)}
}

// DecodeTopology decodes and validates a message. The error names the field.
func DecodeTopology(m *api.Topology) (links.Topology, error) {
	if n := proto.Size(m); n > MaxTopologyBytes {
		return links.Topology{}, fmt.Errorf("topology: message of %d bytes exceeds the limit of %d", n, MaxTopologyBytes)
	}
	s := links.Topology{Host: m.GetHost(), Known: m.GetKnown(), CUDA: m.GetCuda(), Verbs: m.GetVerbs(), PeerMemory: m.GetPeerMemory(), TCP: links.Rate(m.GetTcp())}
	if p := m.GetRdma(); p != nil {
		s.RDMA = &links.Port{Name: p.GetName(), Layer: p.GetLayer(), Subnet: p.GetSubnet(), Rate: links.Rate(p.GetRate()), Distance: distance(p.GetDistance())}
	}
	if g := m.GetGpu(); g != nil {
		s.GPU = &links.GPU{
			Index: int(g.GetIndex()), UUID: g.GetUuid(), Address: g.GetAddress(), Absent: g.GetAbsent(), Lost: g.GetLost(), MIG: g.GetMig(),
			Copy: links.Rate(g.GetCopy()), PCIe: links.Rate(g.GetPcie()), Switched: decodeBundle(g.GetSwitched()),
		}
		for _, p := range g.GetPeers() {
			s.GPU.Peers = append(s.GPU.Peers, links.Peer{
				Index: int(p.GetIndex()), Address: p.GetAddress(), NVLinks: decodeBundle(p.GetNvlinks()), Distance: distance(p.GetDistance()),
				Asked: p.GetAsked(), Read: p.GetRead(), Write: p.GetWrite(), NVLink: p.GetNvlink(),
			})
		}
	}
	return s, s.Validate()
}

func decodeBundle(b *api.TopologyBundle) links.Bundle {
	return links.Bundle{Links: int(b.GetLinks()), Rate: links.Rate(b.GetRate())}
}

// distance converts a received distance; values of later versions become unknown.
func distance(d uint32) links.Distance { return links.Distance(min(d, uint32(links.UnknownDistance))) }
