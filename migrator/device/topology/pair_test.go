package topology_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/device/topology"
	"github.com/cascadeinfer/cascade/policies"
)

// anything is a fleet at random, sound or not.
func anything(r *rand.Rand) (topology.Machines, []topology.Place) {
	ms := topology.Machines{}
	var places []topology.Place
	for n := range 1 + r.IntN(3) {
		name := fmt.Sprint("n", n)
		m := &topology.Machine{Name: name, PeerMemory: []string{"", "dma-buf"}[r.IntN(2)]}
		for _, l := range []string{topology.CUDA, topology.Verbs} {
			if r.IntN(4) > 0 {
				m.Libraries = append(m.Libraries, topology.Library{Name: l, Missing: []string{"", "", "gone"}[r.IntN(3)]})
			}
		}
		for i, l := range grow(r) {
			pci := l.pci
			if r.IntN(4) == 0 {
				pci.Path, pci.NUMA = nil, topology.Unknown
			}
			pci.Link = topology.PCIe{Gen: r.IntN(9), MaxGen: r.IntN(9), Width: r.IntN(17), MaxWidth: r.IntN(17)}
			if i%2 == 0 {
				m.NICs = append(m.NICs, topology.NIC{Name: fmt.Sprint("x", i), RDMA: []string{"", "Ethernet", "InfiniBand"}[r.IntN(3)], PCI: pci, Up: r.IntN(3) > 0, Rate: topology.Rate(r.IntN(50)) * topology.Gigabyte})
				continue
			}
			g := topology.GPU{Index: len(m.GPUs), PCI: pci, MIG: r.IntN(8) == 0, Copy: topology.Rate(r.IntN(2)) * 2e12}
			for k := range r.IntN(4) {
				g.NVLinks = append(g.NVLinks, topology.NVLink{Link: k, Active: r.IntN(3) > 0, Version: r.IntN(8), Switch: r.IntN(2) == 0, Remote: pci.Address})
			}
			m.GPUs = append(m.GPUs, g)
		}
		for _, a := range m.GPUs {
			for _, b := range m.GPUs {
				if a.Index != b.Index && r.IntN(2) == 0 {
					m.Peers = append(m.Peers, topology.Peer{From: a.Index, To: b.Index, Read: r.IntN(2) == 0, Write: r.IntN(2) == 0, Distance: topology.Distance(r.IntN(9))})
				}
			}
		}
		if r.IntN(5) > 0 {
			ms[name] = m
		}
		for i := range 1 + r.IntN(3) {
			places = append(places, topology.Place{Replica: policies.ReplicaID(fmt.Sprint(name, "-", i)), Node: name, GPU: r.IntN(len(m.GPUs)+2) - 1})
		}
	}
	return ms, places
}

// TestEveryPairHasAWay holds whatever the machines say of themselves: there is an
// open way with a positive rate, every way has a reason, none of another machine's
// is by its memory, and asking twice gives the same.
func TestEveryPairHasAWay(t *testing.T) {
	open := map[topology.Kind]int{}
	for seed := range uint64(400) {
		ms, places := anything(rand.New(rand.NewPCG(seed, 2)))
		pairs := ms.Pairs(places)
		if want := len(places) * (len(places) - 1); len(pairs) != want {
			t.Fatalf("seed %d: %d pairs of %d places", seed, len(pairs), len(places))
		}
		if again := ms.Pairs(places); !reflect.DeepEqual(pairs, again) {
			t.Fatalf("seed %d: asked again, the pairs are others", seed)
		}
		node := map[policies.ReplicaID]string{}
		for _, p := range places {
			node[p.Replica] = p.Node
		}
		for _, p := range pairs {
			best := p.Best()
			if best.Closed || best.Rate <= 0 {
				t.Fatalf("seed %d: %v has no way: %+v", seed, p, best)
			}
			open[best.Kind]++
			if near := node[p.From] == node[p.To]; near != (best.Kind <= topology.ViaHost) && !(near && best.Kind == topology.TCP) {
				t.Fatalf("seed %d: %+v between %s and %s", seed, best, node[p.From], node[p.To])
			}
			for _, w := range p.Ways {
				if w.Reason == "" || w.Closed && w.Rate != 0 {
					t.Fatalf("seed %d: %+v", seed, w)
				}
			}
			last := policies.Micros(0)
			for bytes := policies.Bytes(0); bytes >= 0 && bytes < 1<<60; bytes = bytes*5 + 1 {
				if c := p.Cost(bytes); c < last {
					t.Fatalf("seed %d: %d bytes take less than fewer: %d µs", seed, bytes, c)
				} else {
					last = c
				}
			}
		}
	}
	for k := topology.SameGPU; k <= topology.TCP; k++ {
		if open[k] == 0 {
			t.Errorf("no pair of any fleet goes by %v", k)
		}
	}
}

func TestCostOfNoWay(t *testing.T) {
	if w := (topology.Pair{}).Best(); !w.Closed {
		t.Errorf("the zero pair has a way: %+v", w)
	}
}

func BenchmarkPairs(b *testing.B) {
	ms, _ := anything(rand.New(rand.NewPCG(1, 2)))
	places := make([]topology.Place, 16)
	for i := range places {
		places[i] = topology.Place{Replica: policies.ReplicaID(fmt.Sprint("r", i)), Node: fmt.Sprint("n", i%2), GPU: i / 2}
	}
	b.ReportAllocs()
	for b.Loop() {
		ms.Pairs(places)
	}
}
