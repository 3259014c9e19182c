package topology_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

// TestScenarios runs testdata/*.txt (-rewrite rewrites the expected output). The commands:
//
//	machine a libcuda.so.1 libibverbs.so.1 peermem=dma-buf   a host and its libraries
//	gpu 0 path=p0/rp0/up0/dp0/g0 numa=0 link=5x16 switch=18x4 direct=g1:2x3 copy=2000 mig lost=why
//	                 a GPU of the machine; g0 is its PCI address; 18 links of version 4 into switches
//	peers rw         what the driver says of all pairs of GPUs: r, w, both or none ("-")
//	nic mlx5_0 path=… numa=0 rdma=InfiniBand gb=50 port=1 down      a NIC; gb are GB/s
//	place r0 a 0 rdma=mlx5_0/1     a replica on a GPU of a host, "-" for the host's memory,
//	                 and the RDMA device and port that it is to use, or "rdma=off"
//	paths r0 r1      the paths, best first
//	best             the best path of every pair of places
func TestScenarios(t *testing.T) {
	testkit.TestScenarios(t, "testdata", func(t *testing.T) testkit.Player {
		s := &stage{t: t, machines: topology.Machines{}}
		return s.do
	})
}

type stage struct {
	t        *testing.T
	machines topology.Machines
	last     *topology.Machine
	places   []topology.Place
}

func (s *stage) do(words []string) (out []string, err error) {
	switch words[0] {
	case "machine":
		m := &topology.Machine{Name: words[1]}
		for _, l := range []string{topology.CUDA, topology.Verbs} {
			m.Libraries = append(m.Libraries, topology.Library{Name: l, Missing: "not on this machine"})
		}
		for _, w := range words[2:] {
			if by, ok := strings.CutPrefix(w, "peermem="); ok {
				m.PeerMemory = by
			}
			for i := range m.Libraries {
				if m.Libraries[i].Name == w {
					m.Libraries[i].Missing = ""
				}
			}
		}
		s.last, s.machines[m.Name] = m, m
	case "gpu":
		s.last.GPUs = append(s.last.GPUs, s.gpu(words[1:]))
	case "nic":
		s.last.NICs = append(s.last.NICs, s.nic(words[1:]))
	case "peers":
		for _, a := range s.last.GPUs {
			for _, b := range s.last.GPUs {
				if a.Index != b.Index {
					s.last.Peers = append(s.last.Peers, topology.Peer{
						From: a.Index, To: b.Index, Distance: links.UnknownDistance, Read: strings.Contains(words[1], "r"), Write: strings.Contains(words[1], "w"),
					})
				}
			}
		}
	case "place":
		p := topology.Place{Replica: policies.ReplicaID(words[1]), Node: words[2], GPU: topology.Unknown}
		if words[3] != "-" {
			p.GPU = s.number(words[3])
		}
		for _, w := range words[4:] {
			device, port, ok := strings.Cut(strings.TrimPrefix(w, "rdma="), "/")
			if p.Adapter.Off = device == "off"; !p.Adapter.Off {
				p.Adapter.Device = device
			}
			if ok {
				p.Adapter.Port = s.number(port)
			}
		}
		s.places = append(s.places, p)
	case "paths":
		for _, p := range s.machines.Pairs(s.places) {
			if string(p.From) != words[1] || string(p.To) != words[2] {
				continue
			}
			for _, w := range p.Paths {
				if w.Closed {
					out = append(out, fmt.Sprintf("no %s (%s): %s", w.Transport, w.Kind, w.Reason))
				} else {
					out = append(out, fmt.Sprintf("%s: %s, %s, %d µs: %s", w.Transport, w.Kind, w.Rate, w.Latency, w.Reason))
				}
			}
		}
	case "best":
		for _, p := range s.machines.Pairs(s.places) {
			w := p.Best()
			out = append(out, fmt.Sprintf("%s %s: %s by %s, %s", p.From, p.To, w.Kind, w.Transport, w.Rate))
		}
	default:
		return nil, fmt.Errorf("no such command")
	}
	return out, nil
}

func (s *stage) gpu(words []string) topology.GPU {
	g := topology.GPU{Index: s.number(words[0]), PCI: topology.PCI{NUMA: topology.Unknown}}
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "switch":
			count, version := s.product(value)
			for i := range count {
				g.NVLinks = append(g.NVLinks, topology.NVLink{Link: i, Active: true, Version: version, Switch: true})
			}
		case "direct":
			remote, spec, _ := strings.Cut(value, ":")
			count, version := s.product(spec)
			for range count {
				g.NVLinks = append(g.NVLinks, topology.NVLink{Link: len(g.NVLinks), Active: true, Version: version, Remote: remote})
			}
		case "copy":
			g.Copy = links.Rate(s.number(value)) * links.Gigabyte
		case "mig":
			g.MIG = true
		case "lost":
			g.Health.Lost = value
		default:
			s.place(&g.PCI, key, value)
		}
	}
	return g
}

func (s *stage) nic(words []string) topology.NIC {
	n := topology.NIC{Name: words[0], Up: true, PCI: topology.PCI{NUMA: topology.Unknown}}
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "rdma":
			n.RDMA = value
		case "gb":
			n.Rate = links.Rate(s.number(value)) * links.Gigabyte
		case "down":
			n.Up = false
		case "port":
			n.Port = s.number(value)
		default:
			s.place(&n.PCI, key, value)
		}
	}
	return n
}

// place sets a field of a device's place.
func (s *stage) place(p *topology.PCI, key, value string) {
	switch key {
	case "path":
		p.Path = strings.Split(value, "/")
		p.Address = p.Path[len(p.Path)-1]
	case "numa":
		p.NUMA = s.number(value)
	case "link":
		p.Link.MaxGen, p.Link.MaxWidth = s.product(value)
	default:
		s.t.Fatalf("no device has the field %q", key)
	}
}

// product reads 18x4.
func (s *stage) product(text string) (int, int) {
	a, b, _ := strings.Cut(text, "x")
	return s.number(a), s.number(b)
}

func (s *stage) number(text string) int {
	n := testkit.Must(strconv.Atoi(text))
	return n
}
