package hostdevices

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// deviceOf returns a replica on a host with four GPUs, joined in pairs.
func deviceOf(id, node string, gpu int) control.Device {
	s := links.Topology{Host: node, Known: true, GPU: &links.GPU{Index: gpu, UUID: node + fmt.Sprint(gpu), Address: fmt.Sprint("g", gpu), PCIe: 32 * links.Gigabyte}}
	for o := range 4 {
		if o != gpu {
			p := links.Peer{Index: o, Address: fmt.Sprint("g", o), Distance: links.RootComplex, Asked: true, Read: true, NVLink: true}
			if o == gpu^1 {
				p.NVLinks = links.Bundle{Links: 4, Rate: 100 * links.Gigabyte}
			}
			s.GPU.Peers = append(s.GPU.Peers, p)
		}
	}
	return control.Device{Replica: policies.ReplicaID(id), Topology: s, Transports: []control.Transport{
		{Name: "cuda", State: loadreport.RouteReady}, {Name: "shm", State: loadreport.RouteReady}, {Name: "tcp", State: loadreport.RouteReady},
	}}
}

// TestCountedPairs compares the pairs counted by groups with those counted one by one.
func TestCountedPairs(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 6))
		m := modelDevices{DeviceModel: control.DeviceModel{Name: "m", Links: &links.Rates{SameHost: 375e9, BetweenHosts: 25e9, MaxBetweenHosts: 50e9}}}
		for i := range r.IntN(20) {
			d := deviceOf(fmt.Sprint("r", i), fmt.Sprint("n", r.IntN(3)), r.IntN(4))
			if r.IntN(4) == 0 {
				d.Topology = links.Topology{Host: d.Topology.Host}
			}
			if r.IntN(4) == 0 {
				d.Transports[0] = control.Transport{Name: "cuda", State: loadreport.RouteBroken, Reason: "no driver"}
			}
			m.Replicas = append(m.Replicas, d)
		}
		want := map[string]int{}
		for _, p := range replicaPairs(t.Context(), m.DeviceModel) {
			want[p.Path.Transport+p.Path.Kind.String()+p.Path.Rate.String()]++
		}
		got := map[string]int{}
		for _, row := range m.groupTable().Rows {
			var n int
			fmt.Sscan(row[6], &n)
			got[row[0]+row[1]+row[4]] += n
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("seed %d: counted %v, pair by pair %v", seed, got, want)
		}
	}
}

// TestPairReason checks that the transports that a receiver reports take precedence over the links.
func TestPairReason(t *testing.T) {
	m := control.DeviceModel{Links: &links.Rates{}}
	a, b := deviceOf("a", "n", 0), deviceOf("b", "n", 1)
	for _, c := range []struct {
		reports        []control.Transport
		path, against  string
		measured, rate float64
	}{
		{b.Transports, "cuda", "", 0, 80e9},
		{nil, "cuda", "", 0, 80e9},
		{append(b.Transports[:3:3], control.Transport{Name: "cuda", Peer: "a", State: loadreport.RouteReady, Rate: 5e10}), "cuda", "", 5e10, 80e9},
		{append(b.Transports[:3:3], control.Transport{Name: "cuda", Peer: "a", State: loadreport.RouteHeld, Reason: "it broke"}), "tcp", "cuda: held back, it broke", 0, 2570281124},
		{append(b.Transports[:3:3], control.Transport{Name: "cuda", Peer: "c", State: loadreport.RouteHeld, Reason: "it broke"}), "cuda", "", 0, 80e9},
		{[]control.Transport{{Name: "cuda", State: loadreport.RouteBroken, Reason: "no driver"}, b.Transports[2]}, "tcp", "cuda: broken, no driver", 0, 2570281124},
	} {
		to := b
		to.Transports = c.reports
		p := newPairState(m, a, to)
		if p.Path.Transport != c.path || p.Against != c.against || p.Measured != c.measured || float64(p.Path.Rate) != c.rate {
			t.Errorf("%v: %+v", c.reports, p)
		}
		if !strings.Contains(pairReason(p), c.against) {
			t.Errorf("why: %s", pairReason(p))
		}
	}
}

// TestLargeFleetOfDevices checks that the pairs of ten thousand replicas are counted, not listed.
func TestLargeFleetOfDevices(t *testing.T) {
	m := modelDevices{DeviceModel: control.DeviceModel{Name: "m", Links: &links.Rates{}}}
	for i := range 10_000 {
		m.Replicas = append(m.Replicas, deviceOf(fmt.Sprint("r", i), fmt.Sprint("n", i/4), i%4))
	}
	total := 0
	for _, row := range m.groupTable().Rows {
		var n int
		fmt.Sscan(row[6], &n)
		total += n
	}
	if total != 10_000*9999 {
		t.Errorf("%d pairs", total)
	}
}
