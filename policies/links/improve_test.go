package links_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

// problem is a fleet, dealt to stages.
type problem struct {
	seats     []links.Endpoint
	stages    [][]links.Member
	cuts      []policies.Tokens
	crossings []float64
}

// random deals a fleet of at most n replicas at random.
func random(r *rand.Rand, n int) problem {
	kinds := []string{"switched", "bridged", "sockets", "unknown", "bridged"}
	var nodes []string
	each := []int{2, 4}[r.IntN(2)]
	for range 1 + r.IntN(n/each) {
		nodes = append(nodes, kinds[r.IntN(len(kinds))])
	}
	p := problem{seats: fleet(each, nodes...), cuts: []policies.Tokens{1000, 16000}, crossings: []float64{1 + 3*r.Float64(), 1 + r.Float64()}}
	if len(p.seats) < 3 || r.IntN(2) == 0 {
		p.cuts, p.crossings = p.cuts[:1], p.crossings[:1]
	}
	p.stages = make([][]links.Member, len(p.cuts)+1)
	origins := 1 + r.IntN(2)
	for i, at := range r.Perm(len(p.seats)) {
		s := i
		if s >= len(p.stages) {
			s = r.IntN(len(p.stages))
		}
		p.stages[s] = append(p.stages[s], links.Member{ID: p.seats[at].ID, Origin: r.IntN(origins)})
	}
	return p
}

func ids(stages [][]links.Member) [][]policies.ReplicaID {
	out := make([][]policies.ReplicaID, len(stages))
	for s, members := range stages {
		for _, m := range members {
			out[s] = append(out[s], m.ID)
		}
	}
	return out
}

func (p problem) cost(stages [][]links.Member) float64 {
	return naive(p.seats, ids(stages), p.cuts, p.crossings)
}

// squares is how unevenly each stage is spread over the nodes.
func (p problem) squares(stages [][]links.Member) []int {
	node := map[policies.ReplicaID]string{}
	for _, s := range p.seats {
		node[s.ID] = s.Topology.Host
	}
	out := make([]int, len(stages))
	for s, members := range stages {
		count := map[string]int{}
		for _, m := range members {
			count[node[m.ID]]++
		}
		for _, c := range count {
			out[s] += c * c
		}
	}
	return out
}

// best tries every way to deal the members that keeps origins and spread.
func (p problem) best() float64 {
	limit := p.squares(p.stages)
	type slot struct{ stage, index int }
	var slots []slot
	var members []links.Member
	for s := range p.stages {
		for i, m := range p.stages[s] {
			slots, members = append(slots, slot{s, i}), append(members, m)
		}
	}
	least := math.Inf(1)
	work := make([][]links.Member, len(p.stages))
	for s := range work {
		work[s] = slices.Clone(p.stages[s])
	}
	used := make([]bool, len(members))
	var deal func(k int)
	deal = func(k int) {
		if k == len(slots) {
			for s, n := range p.squares(work) {
				if n > limit[s] {
					return
				}
			}
			least = min(least, p.cost(work))
			return
		}
		for i, m := range members {
			// Of one stage, one order is enough.
			if used[i] || m.Origin != p.stages[slots[k].stage][slots[k].index].Origin {
				continue
			}
			if k > 0 && slots[k-1].stage == slots[k].stage {
				if before := work[slots[k].stage][slots[k].index-1]; before.Origin == m.Origin && slices.Index(members, before) > i {
					continue
				}
			}
			used[i] = true
			work[slots[k].stage][slots[k].index] = m
			deal(k + 1)
			used[i] = false
		}
	}
	deal(0)
	return least
}

// TestImproveAgainstAllOthers compares what Improve finds with the best there is.
func TestImproveAgainstAllOthers(t *testing.T) {
	tried, equal, excess, saved := 0, 0, 0.0, 0.0
	for seed := range uint64(400) {
		p := random(rand.New(rand.NewPCG(seed, 7)), 8)
		before, spread, best := p.cost(p.stages), p.squares(p.stages), p.best()
		had := origins(p.stages)
		newMap(p.seats).Improve(p.stages, p.cuts, p.crossings)
		after := p.cost(p.stages)
		if after > before*(1+1e-9) || after < best*(1-1e-9) {
			t.Fatalf("seed %d: cost went from %v to %v, the best is %v", seed, before, after, best)
		}
		for s, n := range p.squares(p.stages) {
			if n > spread[s] {
				t.Fatalf("seed %d: stage %d is less even", seed, s)
			}
		}
		if now := origins(p.stages); now != had {
			t.Fatalf("seed %d: the stages had %s, and have %s", seed, had, now)
		}
		tried++
		if after <= best*(1+1e-9) {
			equal++
		}
		excess += after/best - 1
		saved += 1 - after/before
	}
	t.Logf("%d of %d are the best there is; the mean excess is %.2f %%, the mean saving %.0f %%", equal, tried, 100*excess/float64(tried), 100*saved/float64(tried))
	if equal*100 < 95*tried || excess > 0.02*float64(tried) {
		t.Error("too few are the best there is")
	}
}

// origins says which members of which origins are where.
func origins(stages [][]links.Member) string {
	all := map[policies.ReplicaID]int{}
	count := make([][4]int, len(stages))
	for s, members := range stages {
		for _, m := range members {
			all[m.ID]++
			count[s][m.Origin]++
		}
	}
	return fmt.Sprint(len(all), count)
}

// TestNoBetterPair checks that no exchange of two members that keeps origins and spread is
// left which makes migrations cheaper.
func TestNoBetterPair(t *testing.T) {
	tried, better := 0, 0
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 11))
		p := random(r, 16)
		if len(p.crossings) == 2 {
			p.crossings[r.IntN(2)] *= 20
		}
		m := newMap(p.seats)
		price := func() (sum float64) {
			for l, cut := range p.cuts {
				for _, a := range p.stages[l] {
					least := math.Inf(1)
					for _, b := range p.stages[l+1] {
						c := m.Transfer(a.ID, b.ID)
						least = min(least, c.Base+c.PerToken*float64(cut))
					}
					sum += p.crossings[l] / float64(len(p.stages[l])) * least
				}
			}
			return sum
		}
		before, had := price(), p.squares(p.stages)
		m.Improve(p.stages, p.cuts, p.crossings)
		now, spread := price(), p.squares(p.stages)
		for l, n := range spread {
			if n > had[l] {
				t.Errorf("seed %d: stage %d is less even", seed, l)
			}
		}
		if now > before*(1+1e-9) {
			t.Errorf("seed %d: cost went from %v to %v", seed, before, now)
		}
		for s := range p.stages {
			for o := s + 1; o < len(p.stages); o++ {
				for i := range p.stages[s] {
					for k := range p.stages[o] {
						a, b := &p.stages[s][i], &p.stages[o][k]
						if a.Origin != b.Origin {
							continue
						}
						*a, *b = *b, *a
						tried++
						if price() < now*(1-1e-6) {
							if even := p.squares(p.stages); even[s] <= spread[s] && even[o] <= spread[o] {
								better++
							}
						}
						*a, *b = *b, *a
					}
				}
			}
		}
	}
	if better > 0 {
		t.Errorf("%d of %d exchanges are better", better, tried)
	}
}

// TestLargeHost checks that the members of a host of a large fleet are exchanged if they are
// few enough to compare.
func TestLargeHost(t *testing.T) {
	for _, c := range []struct {
		each    int
		changes bool
	}{{34, true}, {64, true}, {66, false}} {
		p := problem{seats: fleet(c.each, "bridged"), cuts: []policies.Tokens{4000}, crossings: []float64{1}, stages: make([][]links.Member, 2)}
		for i, s := range p.seats { // one pair in the first stage
			p.stages[min(1, i/2)] = append(p.stages[min(1, i/2)], links.Member{ID: s.ID})
		}
		was := p.cost(p.stages)
		newMap(p.seats).Improve(p.stages, p.cuts, p.crossings)
		if now := p.cost(p.stages); (now < was) != c.changes {
			t.Errorf("%d on one host: cost went from %v to %v", c.each, was, now)
		}
	}
}

// TestWrongCuts checks that stages without their boundaries stay.
func TestWrongCuts(t *testing.T) {
	p := badlyDealt("bridged", "bridged")
	was := fmt.Sprint(p.stages)
	for _, cuts := range [][]policies.Tokens{nil, p.cuts[:1], {1, 2, 3}} {
		newMap(p.seats).Improve(p.stages, cuts, nil)
		if now := fmt.Sprint(p.stages); now != was {
			t.Errorf("cuts %v: %s became %s", cuts, was, now)
		}
	}
}

// TestAlike: where nothing sets replicas apart, everybody stays.
func TestAlike(t *testing.T) {
	for _, kind := range []string{"switched", "unknown"} {
		p := problem{seats: fleet(8, kind, kind, kind, kind, kind), cuts: []policies.Tokens{4000}, stages: make([][]links.Member, 2)}
		for i, s := range p.seats {
			p.stages[i%2] = append(p.stages[i%2], links.Member{ID: s.ID})
		}
		was := fmt.Sprint(p.stages)
		newMap(p.seats).Improve(p.stages, p.cuts, nil)
		if now := fmt.Sprint(p.stages); now != was {
			t.Errorf("%s: %s became %s", kind, was, now)
		}
	}
}

// badlyDealt deals machines with eight GPUs to three stages.
func badlyDealt(kinds ...string) problem {
	p := problem{seats: fleet(8, kinds...), cuts: []policies.Tokens{1000, 16000}, stages: make([][]links.Member, 3)}
	for i, s := range p.seats {
		at := []int{0, 0, 0, 0, 0, 1, 1, 2}[i%8]
		p.stages[at] = append(p.stages[at], links.Member{ID: s.ID})
	}
	return p
}

// large is a fleet of 1,250 machines.
func large() problem {
	return badlyDealt(slices.Repeat([]string{"bridged", "switched", "sockets", "bridged", "unknown"}, 250)...)
}

func BenchmarkNew10000(b *testing.B) {
	p := large()
	b.ReportAllocs()
	for b.Loop() {
		newMap(p.seats)
	}
}

func BenchmarkPlan10000(b *testing.B) {
	p := large()
	m := newMap(p.seats)
	plan := policies.Plan{Stages: make([]policies.Stage, 3)}
	for s, list := range ids(p.stages) {
		plan.Stages[s] = policies.Stage{Replicas: list, High: 1000 << (4 * s)}
	}
	b.ReportAllocs()
	for b.Loop() {
		m.PlanTransfer(plan, nil)
	}
}

func BenchmarkImprove10000(b *testing.B) { benchmarkImprove(b, large()) }

func BenchmarkImprove32(b *testing.B) {
	benchmarkImprove(b, badlyDealt("bridged", "bridged", "switched", "sockets"))
}

func benchmarkImprove(b *testing.B, p problem) {
	m := newMap(p.seats)
	stages := make([][]links.Member, len(p.stages))
	b.ReportAllocs()
	for b.Loop() {
		for s := range stages {
			stages[s] = slices.Clone(p.stages[s])
		}
		m.Improve(stages, p.cuts, nil)
	}
}
