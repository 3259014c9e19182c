package links_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

// deal is a fleet whose replicas have no GPU, only a network: what sets them apart is its rate.
type deal struct {
	problem
	rates map[policies.ReplicaID]links.Rate
}

func newDeal(stages int, crossings ...float64) *deal {
	d := &deal{problem{crossings: crossings, stages: make([][]links.Member, stages)}, map[policies.ReplicaID]links.Rate{}}
	for l := range stages - 1 {
		d.cuts = append(d.cuts, 4096<<l)
	}
	return d
}

// add puts a replica into a stage.
func (d *deal) add(host string, stage int, rate links.Rate) {
	id := policies.ReplicaID(fmt.Sprint("r", len(d.seats)))
	d.seats = append(d.seats, links.Endpoint{ID: id, Topology: links.Topology{Host: host, Known: true, TCP: rate}})
	d.stages[stage] = append(d.stages[stage], links.Member{ID: id})
	d.rates[id] = rate
}

const (
	slow = 5 << 20 // a fifth is lost
	fast = 5 << 28
)

// TestNoMoveWithoutGain checks that a host's exchange that costs other hosts' migrations as
// much as it saves its own is not made.
func TestNoMoveWithoutGain(t *testing.T) {
	d := newDeal(3, 4, 1) // two senders in stage 0, at half of the length
	d.add("n0", 0, slow)
	d.add("n0", 2, fast)
	d.add("n1", 0, fast)
	for n := range 64 {
		d.add(fmt.Sprint("m", n), 1, fast)
	}
	// The latency is made half a second, and the rates are powers of two: no sum is rounded.
	m := links.NewCostMap(links.CostMapConfig{Replicas: d.seats, TokenBytes: tokenBytes, Base: 0.5 - 100e-6})
	was := fmt.Sprint(d.stages)
	m.Improve(d.stages, d.cuts, d.crossings)
	if now := fmt.Sprint(d.stages); now != was {
		t.Errorf("%s became %s", was, now)
	}
	d.crossings[0] *= 1.01 // the least gain
	m.Improve(d.stages, d.cuts, d.crossings)
	if now := fmt.Sprint(d.stages); now == was {
		t.Error("an exchange that gains was not made")
	}
}

// TestFewestMoves checks that only members that gain change places: on the one host whose
// GPUs 0 and 1 have a bridge one of these two goes to the other stage, and on the others, where
// all GPUs are alike, every member stays.
func TestFewestMoves(t *testing.T) {
	for _, others := range []int{5, 40} {
		p := problem{seats: fleet(3, append([]string{"bridged"}, slices.Repeat([]string{"switched"}, others)...)...), cuts: []policies.Tokens{4000}, crossings: []float64{1}, stages: make([][]links.Member, 2)}
		for i, s := range p.seats {
			p.stages[i%3/2] = append(p.stages[i%3/2], links.Member{ID: s.ID})
		}
		had, was := slices.Clone(p.stages[0]), p.cost(p.stages)
		newMap(p.seats).Improve(p.stages, p.cuts, p.crossings)
		moved := 0
		for _, m := range had {
			if !slices.Contains(p.stages[0], m) {
				moved++
			}
		}
		if now := p.cost(p.stages); now >= was || moved != 1 {
			t.Errorf("%d other hosts: %d members left the first stage, want 1; the cost went from %v to %v", others, moved, was, now)
		}
	}
}

// TestAcrossHosts checks that in fleets of at most 32 members, and only there, members of
// different hosts change places: here every host has one stage.
func TestAcrossHosts(t *testing.T) {
	for _, hosts := range []int{16, 18} {
		p := problem{seats: fleet(2, slices.Repeat([]string{"bridged"}, hosts)...), cuts: []policies.Tokens{4000}, crossings: []float64{1}, stages: make([][]links.Member, 2)}
		for i, s := range p.seats {
			p.stages[i/2%2] = append(p.stages[i/2%2], links.Member{ID: s.ID})
		}
		was := p.cost(p.stages)
		newMap(p.seats).Improve(p.stages, p.cuts, p.crossings)
		if now := p.cost(p.stages); (now < was) != (len(p.seats) <= 32) {
			t.Errorf("%d members: the cost went from %v to %v", len(p.seats), was, now)
		}
	}
}

// TestEqualHosts checks that each of many hosts that look alike gives its fast networks to the
// stage that sends.
func TestEqualHosts(t *testing.T) {
	d := newDeal(3, 1, 1)
	d.add("m", 1, 4*fast)
	for n := range 100 {
		for k := range 64 {
			d.add(fmt.Sprint("n", n), k/32*2, links.Rate(1+k%4)*fast)
		}
	}
	d.crossings[0] = 1000 // the senders on all hosts need a fast network, the receivers do not
	newMap(d.seats).Improve(d.stages, d.cuts, d.crossings)
	count := map[links.Rate]int{}
	for _, m := range d.stages[0] {
		count[d.rates[m.ID]]++
	}
	if count[3*fast] != 100*16 || count[4*fast] != 100*16 {
		t.Errorf("the senders have %v, want the two fastest networks", count)
	}
}
