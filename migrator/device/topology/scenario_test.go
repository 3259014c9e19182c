package topology_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/device/topology"
	"github.com/cascadeinfer/cascade/policies"
)

var update = flag.Bool("update", false, "rewrite the expectations of the scenarios")

// TestScenarios plays every testdata/*.txt. A line is a command or, after ">",
// what the command before said; "#" begins a comment. The commands:
//
//	machine a libcuda.so.1 libibverbs.so.1 peermem=dma-buf   a node and its libraries
//	gpu 0 path=p0/rp0/up0/dp0/g0 numa=0 link=5x16 switch=18x4 direct=g1:2x3 copy=2000 mig lost="…"
//	                 a GPU of the machine; g0 is its PCI address; 18 links of version 4 into switches
//	peers rw         what the driver says of all pairs of GPUs: r, w, both or none ("-")
//	nic mlx5_0 path=… numa=0 rdma=InfiniBand gb=50 port=1 down      a NIC; gb are GB/s
//	place r0 a 0 rdma=mlx5_0/1     a replica on a GPU of a node, "-" for the host's memory,
//	                 and the RDMA device and port that it is to use, or "rdma=off"
//	pair r0 r1       the ways
//	best             the best way of every pair of places
//	cost r0 r1 1000000   what so many bytes take
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(text))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(text) {
				t.Errorf("%s: got\n%s", file, got)
			}
		})
	}
}

type stage struct {
	machines topology.Machines
	last     *topology.Machine
	places   []topology.Place
}

func play(t *testing.T, text string) string {
	s := stage{machines: topology.Machines{}}
	var out strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, ">") {
			continue
		}
		fmt.Fprintln(&out, line)
		words := fields(line)
		if len(words) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		for _, said := range s.do(t, words) {
			fmt.Fprintln(&out, ">", said)
		}
	}
	return out.String()
}

// fields splits at spaces outside of quotes.
func fields(line string) (out []string) {
	quoted := false
	for _, f := range strings.FieldsFunc(line, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return r == ' ' && !quoted
	}) {
		out = append(out, strings.ReplaceAll(f, `"`, ""))
	}
	return out
}

func (s *stage) do(t *testing.T, words []string) (said []string) {
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
		s.last.GPUs = append(s.last.GPUs, gpu(t, words[1:]))
	case "nic":
		s.last.NICs = append(s.last.NICs, nic(t, words[1:]))
	case "peers":
		for _, a := range s.last.GPUs {
			for _, b := range s.last.GPUs {
				if a.Index != b.Index {
					s.last.Peers = append(s.last.Peers, topology.Peer{From: a.Index, To: b.Index, Distance: topology.Far,
						Read: strings.Contains(words[1], "r"), Write: strings.Contains(words[1], "w")})
				}
			}
		}
	case "place":
		p := topology.Place{Replica: policies.ReplicaID(words[1]), Node: words[2], GPU: topology.Unknown}
		if words[3] != "-" {
			p.GPU = number(t, words[3])
		}
		for _, w := range words[4:] {
			p.Adapter.Device = strings.TrimPrefix(w, "rdma=")
			if p.Adapter.Off = p.Adapter.Device == "off"; p.Adapter.Off {
				p.Adapter.Device = ""
			}
			if device, port, ok := strings.Cut(p.Adapter.Device, "/"); ok {
				p.Adapter.Device, p.Adapter.Port = device, number(t, port)
			}
		}
		s.places = append(s.places, p)
	case "pair":
		for _, w := range s.pair(t, words[1], words[2]).Ways {
			if w.Closed {
				said = append(said, fmt.Sprintf("no %s (%s): %s", w.Transport, w.Kind, w.Reason))
			} else {
				said = append(said, fmt.Sprintf("%s: %s, %s, %d µs: %s", w.Transport, w.Kind, w.Rate, w.Latency, w.Reason))
			}
		}
	case "best":
		for _, p := range s.machines.Pairs(s.places) {
			w := p.Best()
			said = append(said, fmt.Sprintf("%s %s: %s by %s, %s", p.From, p.To, w.Kind, w.Transport, w.Rate))
		}
	case "cost":
		said = append(said, fmt.Sprintf("%d µs", s.pair(t, words[1], words[2]).Cost(policies.Bytes(number(t, words[3])))))
	default:
		t.Fatalf("no command %q", words[0])
	}
	return said
}

func (s *stage) pair(t *testing.T, from, to string) topology.Pair {
	for _, p := range s.machines.Pairs(s.places) {
		if p.From == policies.ReplicaID(from) && p.To == policies.ReplicaID(to) {
			return p
		}
	}
	t.Fatalf("no pair %s %s", from, to)
	return topology.Pair{}
}

func gpu(t *testing.T, words []string) topology.GPU {
	g := topology.GPU{Index: number(t, words[0]), PCI: topology.PCI{NUMA: topology.Unknown}}
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "switch":
			count, version := twin(t, value)
			for i := range count {
				g.NVLinks = append(g.NVLinks, topology.NVLink{Link: i, Active: true, Version: version, Switch: true})
			}
		case "direct":
			remote, spec, _ := strings.Cut(value, ":")
			count, version := twin(t, spec)
			for range count {
				g.NVLinks = append(g.NVLinks, topology.NVLink{Link: len(g.NVLinks), Active: true, Version: version, Remote: remote})
			}
		case "copy":
			g.Copy = topology.Rate(number(t, value)) * topology.Gigabyte
		case "mig":
			g.MIG = true
		case "lost":
			g.Health.Lost = value
		default:
			slot(t, &g.PCI, key, value)
		}
	}
	return g
}

func nic(t *testing.T, words []string) topology.NIC {
	n := topology.NIC{Name: words[0], Up: true, PCI: topology.PCI{NUMA: topology.Unknown}}
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "rdma":
			n.RDMA = value
		case "gb":
			n.Rate = topology.Rate(number(t, value)) * topology.Gigabyte
		case "down":
			n.Up = false
		case "port":
			n.Port = number(t, value)
		default:
			slot(t, &n.PCI, key, value)
		}
	}
	return n
}

func slot(t *testing.T, p *topology.PCI, key, value string) {
	switch key {
	case "path":
		p.Path = strings.Split(value, "/")
		p.Address = p.Path[len(p.Path)-1]
	case "numa":
		p.NUMA = number(t, value)
	case "link":
		p.Link.MaxGen, p.Link.MaxWidth = twin(t, value)
	default:
		t.Fatalf("nothing has a %q", key)
	}
}

func twin(t *testing.T, s string) (int, int) {
	a, b, _ := strings.Cut(s, "x")
	return number(t, a), number(t, b)
}

func number(t *testing.T, s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
