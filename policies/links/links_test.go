package links_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

// anything is a site at random, sound or not.
func anything(r *rand.Rand) links.Topology {
	word := func(of ...string) string { return of[r.IntN(len(of))] }
	speed := func() links.Rate { return []links.Rate{0, 1, 3, 25 * links.Gigabyte, 1 << 50}[r.IntN(5)] }
	s := links.Topology{Host: word("a", "b"), Known: r.IntN(4) > 0, CUDA: word("", "", "gone"), Verbs: word("", "", "gone"), PeerMemory: r.IntN(2) == 0, TCP: speed()}
	if r.IntN(4) > 0 {
		s.RDMA = &links.Port{Name: word("x", "y"), Layer: word("InfiniBand", "Ethernet"), Subnet: word("", "1", "2"), Rate: speed(), Distance: links.Distance(r.IntN(8))}
	}
	if r.IntN(4) > 0 {
		g := &links.GPU{
			Index: r.IntN(3) - 1, UUID: word("", "u0", "u1"), Address: word("", "g0", "g1"), Absent: r.IntN(8) == 0, Lost: word("", "", "", "gone"), MIG: r.IntN(8) == 0,
			Copy: speed(), PCIe: speed(), Switched: links.Bundle{Links: r.IntN(2), Rate: speed()},
		}
		for range r.IntN(3) {
			g.Peers = append(g.Peers, links.Peer{
				Index: r.IntN(3) - 1, Address: word("", "g0", "g1"), NVLinks: links.Bundle{Links: r.IntN(3), Rate: speed()}, Distance: links.Distance(r.IntN(8)),
				Asked: r.IntN(2) == 0, Read: r.IntN(2) == 0, Write: r.IntN(2) == 0, NVLink: r.IntN(2) == 0,
			})
		}
		s.GPU = g
	}
	return s
}

// TestWays holds whatever two sites say: there is an open way with a positive rate,
// each has a reason, only memory of one node is shared, asking twice gives the same,
// and both directions are alike.
func TestWays(t *testing.T) {
	open := map[links.Kind]int{}
	for seed := range uint64(20_000) {
		r := rand.New(rand.NewPCG(seed, 3))
		a, b := anything(r), anything(r)
		d := links.Rates{SameHost: links.Rate(r.IntN(2)) * links.Gigabyte, BetweenHosts: links.Rate(r.IntN(2)) * links.Gigabyte, MaxBetweenHosts: links.Rate(r.IntN(2))}
		ways, best := links.Paths(a, b), d.BestPath(a, b)
		if again := links.Paths(a, b); !reflect.DeepEqual(ways, again) {
			t.Fatalf("seed %d: asked again, the ways are others", seed)
		}
		if best.Closed || best.Rate <= 0 || best.Reason == "" {
			t.Fatalf("seed %d: no way: %+v", seed, best)
		}
		open[best.Kind]++
		for _, w := range ways {
			if w.Reason == "" || w.Closed && w.Rate != 0 || !w.Closed && (w.Rate <= 0 || w.Latency <= 0) || w.Kind <= links.ViaHost && a.Host != b.Host {
				t.Fatalf("seed %d: %+v between %s and %s", seed, w, a.Host, b.Host)
			}
		}
		if back := d.BestPath(b, a); back.Kind != best.Kind || back.Rate != best.Rate {
			t.Fatalf("seed %d: %+v, and back %+v", seed, best, back)
		}
		if x := best.Transfer(1000); x.Validate() != nil || x.PerToken <= 0 {
			t.Fatalf("seed %d: %+v costs %+v", seed, best, x)
		}
		if a.Known && b.Known && d.MaxBetweenHosts > 0 && a.Host != b.Host && best.Rate > d.MaxBetweenHosts {
			t.Fatalf("seed %d: %+v is above the bound", seed, best)
		}
	}
	for k := links.SameGPU; k <= links.TCP; k++ {
		if open[k] == 0 {
			t.Errorf("no pair goes by %v", k)
		}
	}
}

// TestClass says that sites of one class are alike to every other: sites that have
// all of a class in common are changed in what it leaves out, and seen from a third.
func TestClass(t *testing.T) {
	same := 0
	for seed := range uint64(20_000) {
		r := rand.New(rand.NewPCG(seed, 4))
		a, b, third := anything(r), anything(r), anything(r)
		if r.IntN(2) == 0 && a.GPU != nil { // b is a's like on another machine
			g := *a.GPU
			b, b.GPU = a, &g
			g.UUID = "another"
		}
		b.Host = a.Host
		if a.Class() != b.Class() || !a.Known {
			continue
		}
		if third.GPU != nil && a.GPU != nil && (third.GPU.UUID == a.GPU.UUID || third.GPU.UUID == b.GPU.UUID) && third.Host == a.Host {
			continue // it is the GPU itself
		}
		same++
		if x, y := links.BestPath(links.Paths(a, third)), links.BestPath(links.Paths(b, third)); x.Kind != y.Kind || x.Rate != y.Rate {
			if third.Host == a.Host && strings.Contains(fmt.Sprint(links.Paths(a, third), links.Paths(b, third)), "contradict") {
				continue
			}
			t.Fatalf("seed %d: %+v and %+v from %+v and %+v", seed, x, y, a, b)
		}
	}
	if same < 1000 {
		t.Errorf("only %d pairs were of one class", same)
	}
	if (links.Topology{Host: "a", TCP: 5}).Class() != "" {
		t.Error("an unknown site has a class")
	}
}

// TestJSON: what status prints is what a site was.
func TestJSON(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 5))
		want := anything(r)
		fix := func(d *links.Distance) { // 0 has no name
			if *d == 0 {
				*d = links.UnknownDistance
			}
		}
		if want.RDMA != nil {
			fix(&want.RDMA.Distance)
		}
		if want.GPU != nil {
			for i := range want.GPU.Peers {
				fix(&want.GPU.Peers[i].Distance)
			}
		}
		text, err := json.Marshal(want)
		testkit.NoError(t, err)
		var got links.Topology
		if err := json.Unmarshal(text, &got); err != nil || !reflect.DeepEqual(got, want) || !got.Equal(want) {
			t.Fatalf("seed %d: %s: %+v, %v", seed, text, got, err)
		}
	}
}

func TestTransfer(t *testing.T) {
	w := links.Path{Rate: 1000, Latency: 50}
	if got := w.Transfer(100); got != (policies.Transfer{Base: 50e-6, PerToken: 0.1}) {
		t.Errorf("%+v", got)
	}
	if got := (links.Path{}).Transfer(100); got != (policies.Transfer{}) {
		t.Errorf("an unknown rate costs %+v", got)
	}
}
