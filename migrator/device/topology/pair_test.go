package topology_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/device/topology"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
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
				m.NICs = append(m.NICs, topology.NIC{Name: fmt.Sprint("x", i), RDMA: []string{"", "Ethernet", "InfiniBand"}[r.IntN(3)], PCI: pci, Up: r.IntN(3) > 0, Rate: links.Rate(r.IntN(50)) * links.Gigabyte})
				continue
			}
			g := topology.GPU{Index: len(m.GPUs), PCI: pci, MIG: r.IntN(8) == 0, Copy: links.Rate(r.IntN(2)) * 2e12}
			for k := range r.IntN(4) {
				g.NVLinks = append(g.NVLinks, topology.NVLink{Link: k, Active: r.IntN(3) > 0, Version: r.IntN(8), Switch: r.IntN(2) == 0, Remote: pci.Address})
			}
			m.GPUs = append(m.GPUs, g)
		}
		for _, a := range m.GPUs {
			for _, b := range m.GPUs {
				if a.Index != b.Index && r.IntN(2) == 0 {
					m.Peers = append(m.Peers, topology.Peer{From: a.Index, To: b.Index, Read: r.IntN(2) == 0, Write: r.IntN(2) == 0, Distance: links.Distance(r.IntN(9))})
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

// TestPairs holds whatever the machines say of themselves: what is known of a place is
// valid, every pair has an open path, and asking twice gives the same. What the paths are
// is package links' own, which tests it for all that is valid.
func TestPairs(t *testing.T) {
	open := map[links.Kind]int{}
	for seed := range uint64(400) {
		ms, places := anything(rand.New(rand.NewPCG(seed, 2)))
		for _, p := range places {
			if err := ms.Topology(p).Validate(); err != nil {
				t.Fatalf("seed %d: %+v: %v", seed, p, err)
			}
		}
		pairs := ms.Pairs(places)
		if want := len(places) * (len(places) - 1); len(pairs) != want {
			t.Fatalf("seed %d: %d pairs of %d places", seed, len(pairs), len(places))
		}
		if again := ms.Pairs(places); !reflect.DeepEqual(pairs, again) {
			t.Fatalf("seed %d: asked again, the pairs are others", seed)
		}
		for _, p := range pairs {
			if p.Best().Closed {
				t.Fatalf("seed %d: %v has no path", seed, p)
			}
			open[p.Best().Kind]++
		}
	}
	for k := links.SameGPU; k <= links.TCP; k++ {
		if open[k] == 0 {
			t.Errorf("no pair of any fleet uses %v", k)
		}
	}
	big := &topology.Machine{Name: "big"} // more than a links.Topology holds
	for i := range links.MaxPeers + 2 {
		big.GPUs = append(big.GPUs, topology.GPU{Index: i, UUID: strings.Repeat("é", links.MaxText)})
	}
	if err := big.Topology(topology.Place{Node: "big", GPU: 1}).Validate(); err != nil {
		t.Error(err)
	}
	if p := (topology.Pair{}).Best(); !p.Closed {
		t.Errorf("the zero pair has an open path: %+v", p)
	}
}
