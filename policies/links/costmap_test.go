package links_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

var rates = links.Rates{SameHost: 375 * links.Gigabyte, BetweenHosts: 25 * links.Gigabyte, MaxBetweenHosts: 50 * links.Gigabyte}

// tokenBytes is the KV of one token of the tests' model.
const tokenBytes = 131072

// box is one GPU of a machine of a kind: "switched" has NVLinks into switches,
// "bridged" bridges between GPUs 0 and 1, 2 and 3, …, "sockets" PCIe in two sockets,
// "host" none, and of "unknown" nothing is known.
func box(kind, node string, gpu, gpus int) links.Topology {
	s := links.Topology{Host: node, Known: true, TCP: 12 * links.Gigabyte}
	if kind == "unknown" {
		return links.Topology{Host: node}
	}
	if kind == "host" {
		return s
	}
	s.RDMA = &links.Port{Name: fmt.Sprint("mlx5_", gpu), Layer: "InfiniBand", Rate: 50 * links.Gigabyte, Distance: links.Switch}
	s.PeerMemory = true
	s.GPU = &links.GPU{Index: gpu, UUID: fmt.Sprint(node, "-", gpu), Address: fmt.Sprint("g", gpu), PCIe: 32 * links.Gigabyte}
	if kind == "switched" {
		s.GPU.Switched = links.Bundle{Links: 18, Rate: 450 * links.Gigabyte}
	}
	for o := range gpus {
		if o == gpu {
			continue
		}
		p := links.Peer{Index: o, Address: fmt.Sprint("g", o), Distance: links.RootComplex, Asked: true, Read: true, Write: true}
		if kind == "bridged" && o/2 == gpu/2 {
			p.NVLinks, p.NVLink = links.Bundle{Links: 4, Rate: 56 * links.Gigabyte}, true
		}
		if (gpu < gpus/2) != (o < gpus/2) {
			p.Distance = links.System
		}
		s.GPU.Peers = append(s.GPU.Peers, p)
	}
	return s
}

// fleet is nodes of one kind each, with as many replicas.
func fleet(each int, kinds ...string) (seats []links.Endpoint) {
	for n, kind := range kinds {
		node := fmt.Sprint("n", n)
		for gpu := range each {
			seats = append(seats, links.Endpoint{ID: policies.ReplicaID(fmt.Sprintf("%s-%d", node, gpu)), Topology: box(kind, node, gpu, each)})
		}
	}
	return seats
}

// naive prices the boundaries of a plan by looking at every pair.
func naive(seats []links.Endpoint, stages [][]policies.ReplicaID, cuts []policies.Tokens, crossings []float64) float64 {
	site := map[policies.ReplicaID]links.Topology{}
	for _, s := range seats {
		site[s.ID] = s.Topology
	}
	sum := 0.0
	for l, cut := range cuts {
		for _, a := range stages[l] {
			least := math.Inf(1)
			for _, b := range stages[l+1] {
				t := rates.BestPath(site[a], site[b]).Transfer(tokenBytes)
				least = min(least, t.Base+t.PerToken*float64(cut))
			}
			sum += crossings[l] / float64(len(stages[l])) * least
		}
	}
	return sum
}

func newMap(seats []links.Endpoint) *links.CostMap {
	return links.NewCostMap(links.CostMapConfig{Replicas: seats, Rates: rates, TokenBytes: tokenBytes})
}

// TestPlanIsTheSumOfItsPairs compares the price by classes with that of every pair.
func TestPlanIsTheSumOfItsPairs(t *testing.T) {
	kinds := []string{"switched", "bridged", "sockets", "host", "unknown"}
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		var nodes []string
		for range 1 + r.IntN(4) {
			nodes = append(nodes, kinds[r.IntN(len(kinds))])
		}
		seats := fleet(2+r.IntN(5), nodes...)
		r.Shuffle(len(seats), func(i, k int) { seats[i], seats[k] = seats[k], seats[i] })
		cuts := []policies.Tokens{500 + policies.Tokens(r.IntN(1000)), 5000 + policies.Tokens(r.IntN(30000))}[:1+r.IntN(min(2, len(seats)-1))]
		p := policies.Plan{Stages: make([]policies.Stage, len(cuts)+1)}
		stages := make([][]policies.ReplicaID, len(p.Stages))
		for i, s := range seats {
			at := i % len(stages)
			stages[at] = append(stages[at], s.ID)
		}
		crossings, total := make([]float64, len(cuts)), 0.0
		for i := range p.Stages {
			p.Stages[i].Replicas, p.Stages[i].High = stages[i], policies.Unbounded
			if i < len(cuts) {
				p.Stages[i].High, crossings[i] = cuts[i], 1+r.Float64()
			}
		}
		price := newMap(seats).PlanTransfer(p, crossings)
		for i, cut := range cuts {
			total += crossings[i] * (price.Base + price.PerToken*float64(cut))
		}
		if want := naive(seats, stages, cuts, crossings); math.Abs(total-want) > 1e-9*want {
			t.Fatalf("seed %d: %v, pair by pair %v", seed, total, want)
		}
	}
}

// TestNearest: what it promises is never more than what any plan costs.
func TestNearest(t *testing.T) {
	for _, c := range []struct {
		seats []links.Endpoint
		rate  links.Rate // of the hand-over that everybody has
	}{
		{fleet(8, "switched"), 360 * links.Gigabyte},
		{fleet(4, "bridged"), 56 * links.Gigabyte / 5 * 4},
		{fleet(2, "unknown", "unknown"), rates.SameHost},
		{fleet(1, "unknown", "unknown"), rates.BetweenHosts},
		{fleet(1, "switched", "switched"), 32 * links.Gigabyte / 5 * 4},
	} {
		var ids []policies.ReplicaID
		for _, s := range c.seats {
			ids = append(ids, s.ID)
		}
		if got, want := newMap(c.seats).NearestTransfer(ids).PerToken, tokenBytes/float64(c.rate); math.Abs(got-want) > 1e-12*want {
			t.Errorf("%v: %v s a token, want %v", ids, got, want)
		}
	}
	if got := newMap(nil).NearestTransfer(nil); got != (policies.Transfer{}) {
		t.Errorf("no migrations cost %v", got)
	}
}

// TestCostMapTransfer: pairs are what package links says, and strangers are far.
func TestCostMapTransfer(t *testing.T) {
	seats := fleet(4, "bridged", "switched", "unknown")
	m := newMap(seats)
	for _, a := range seats {
		for _, b := range seats {
			if a.ID != b.ID {
				if got, want := m.Transfer(a.ID, b.ID), rates.BestPath(a.Topology, b.Topology).Transfer(tokenBytes); got != want {
					t.Errorf("%s %s: %+v, want %+v", a.ID, b.ID, got, want)
				}
			}
		}
		if got := m.Transfer(a.ID, "unknown").PerToken; got != tokenBytes/float64(rates.BetweenHosts) {
			t.Errorf("a transfer to an unknown replica costs %v s a token", got)
		}
	}
}

// TestManyClasses: beyond the bound only the node counts, and nothing grows.
func TestManyClasses(t *testing.T) {
	var seats []links.Endpoint
	for i := range 1000 {
		s := box("switched", fmt.Sprint("n", i/8), i%8, 8)
		s.TCP = links.Rate(i + 1)
		seats = append(seats, links.Endpoint{ID: policies.ReplicaID(fmt.Sprint("r", i)), Topology: s})
	}
	m := newMap(seats)
	if got := m.Transfer("r0", "r1").PerToken; got != tokenBytes/float64(360*links.Gigabyte) {
		t.Errorf("the first ones are %v s a token apart", got)
	}
	if got := m.Transfer("r253", "r254").PerToken; got != tokenBytes/float64(360*links.Gigabyte) {
		t.Errorf("the last two that 256 classes distinguish, with the unknown one, are %v s a token apart", got)
	}
	if got := m.Transfer("r254", "r255").PerToken; got != tokenBytes/float64(rates.SameHost) {
		t.Errorf("the first of the others is %v s a token apart", got)
	}
	if got := m.Transfer("r992", "r993").PerToken; got != tokenBytes/float64(rates.SameHost) {
		t.Errorf("the last ones are %v s a token apart", got)
	}
	var ids []policies.ReplicaID
	for _, s := range seats {
		ids = append(ids, s.ID)
	}
	if err := m.NearestTransfer(ids).Validate(); err != nil {
		t.Error(err)
	}
}

// TestPlanWithoutCrossings checks that boundaries which nothing crosses count alike, that
// replicas without a known location have no price, and that Config.Base is added.
func TestPlanWithoutCrossings(t *testing.T) {
	seats := fleet(4, "bridged", "switched")
	plan := policies.Plan{Stages: []policies.Stage{
		{High: 1000, Replicas: []policies.ReplicaID{"n0-0", "n1-0"}}, {High: 16000, Replicas: []policies.ReplicaID{"n0-1"}}, {High: policies.Unbounded, Replicas: []policies.ReplicaID{"n1-2"}},
	}}
	m := newMap(seats)
	want := m.PlanTransfer(plan, nil)
	if got := m.PlanTransfer(plan, []float64{0, 0}); got != want || want.PerToken == 0 {
		t.Errorf("nothing crosses: %+v, want %+v", got, want)
	}
	if got := m.PlanTransfer(plan, []float64{0, 1}); got == want {
		t.Error("the crossings change nothing")
	}
	for s := range plan.Stages {
		plan.Stages[s].Replicas = append(plan.Stages[s].Replicas, "unknown")
	}
	if got := m.PlanTransfer(plan, nil); got != want {
		t.Errorf("with unknown replicas: %+v, want %+v", got, want)
	}
	slow := links.NewCostMap(links.CostMapConfig{Replicas: seats, Rates: rates, TokenBytes: tokenBytes, Base: 0.5})
	if got := slow.PlanTransfer(plan, nil); math.Abs(got.Base-want.Base-0.5) > 1e-12 || got.PerToken != want.PerToken {
		t.Errorf("half a second more: %+v, want that more than %+v", got, want)
	}
}
