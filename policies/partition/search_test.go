package partition

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/policytest"
)

// ranges returns a table of n buckets. Ranges that are not given, by start and end, are
// infeasible.
func ranges(n int, given map[[2]int]stage) table {
	t := table{n: n, stages: make([]stage, n*(n+1)/2)}
	for j := 1; j <= n; j++ {
		for i := range j {
			st, ok := given[[2]int{i, j}]
			if !ok {
				st.kmin = math.Inf(1)
			}
			t.row(j)[i] = st
		}
	}
	return t
}

// TestOneStageWinsTies checks that at equal cost one stage wins, even if it needs the whole
// fleet.
func TestOneStageWinsTies(t *testing.T) {
	for _, fixed := range []float64{0, 1} {
		testOneStage(t, ranges(2, map[[2]int]stage{{0, 2}: {fixed: 2 * fixed, kmin: 4}, {0, 1}: {fixed: fixed, kmin: 1}, {1, 2}: {fixed: fixed, kmin: 1}}))
	}
}

func testOneStage(t *testing.T, tab table) {
	s := newSearch(tab, 2, 4)
	high, ok := s.firstPartition()
	s.searchPrice(high)
	if !s.proved() {
		t.Errorf("the bound is %v, the cost %v", s.bound, s.best)
	}
	s.closeGap(labelBudget)
	s.tryDivision([]int{0, 1, 2})
	if got := fmt.Sprint(s.nodes, s.counts, ok); got != "[0 2] [4] true" {
		t.Errorf("Exact: %s", got)
	}
	if got := fmt.Sprint(recurse(tab, 2, 4)); got != "[0 2] [4] true" {
		t.Errorf("Recursion: %s", got)
	}
}

// TestMergeOnlyGains checks that neighbours that gain nothing by merging stay apart, and are
// merged if there may be no more stages.
func TestMergeOnlyGains(t *testing.T) {
	tab := ranges(2, map[[2]int]stage{{0, 2}: {fixed: 2, kmin: 1}, {0, 1}: {fixed: 1, kmin: 1}, {1, 2}: {fixed: 1, kmin: 1}})
	for limit, want := range map[int]int{2: 2, 1: 1} {
		if got := mergeNeighbours(tab, oneReplicaChain(tab, 2), limit); len(got) != want {
			t.Errorf("at most %d stages: %+v", limit, got)
		}
	}
}

// TestMergeUntilNothingLacks checks that TwoPhase merges stages at a loss while one of them
// lacks replicas: here only all three together have enough.
func TestMergeUntilNothingLacks(t *testing.T) {
	tab := ranges(3, map[[2]int]stage{
		{0, 1}: {fixed: 1, kmin: 1}, {1, 2}: {fixed: 1, kmin: 1}, {2, 3}: {fixed: 1, kmin: 2},
		{0, 2}: {fixed: 9, kmin: 1}, {1, 3}: {fixed: 9, kmin: 3}, {0, 3}: {fixed: 9, kmin: 3},
	})
	got := mergeNeighbours(tab, oneReplicaChain(tab, 3), 3)
	if len(got) != 1 || got[0].verdict.lack > 0 {
		t.Errorf("%+v, want one stage that lacks nothing", got)
	}
}

// TestChainLacksLeast checks that the first chain is the one that lacks the fewest replicas,
// although another is cheaper.
func TestChainLacksLeast(t *testing.T) {
	tab := ranges(3, map[[2]int]stage{{0, 1}: {kmin: 1}, {1, 3}: {kmin: 2}, {0, 2}: {fixed: 9, kmin: 1}, {2, 3}: {fixed: 9, kmin: 1}})
	if got := oneReplicaChain(tab, 2); got[0].high != 2 {
		t.Errorf("%+v, want a cut after two buckets", got)
	}
}

// TestMergeWhatLacks checks that TwoPhase merges first where replicas are lacking, if the
// merged stage lacks fewer, although another merge is cheaper.
func TestMergeWhatLacks(t *testing.T) {
	tab := ranges(3, map[[2]int]stage{
		{0, 1}: {fixed: 1, kmin: 1}, {1, 2}: {fixed: 1, kmin: 2}, {2, 3}: {fixed: 1, kmin: 1},
		{0, 2}: {fixed: 1, kmin: 3}, {1, 3}: {fixed: 9, kmin: 2}, {0, 3}: {fixed: 99, kmin: 3},
	})
	got := mergeNeighbours(tab, oneReplicaChain(tab, 3), 3)
	if len(got) != 2 || got[0].high != 1 {
		t.Errorf("%+v, want the second and the third bucket merged", got)
	}
}

// TestShortest compares the shortest paths with all paths. Among those of equal length that
// the limit of stages leaves, it wants the one with the fewest stages.
func TestShortest(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 11))
	limited := 0
	for i := range 4000 {
		n := 1 + rng.IntN(7)
		p := newPaths(n, 1+rng.IntN(n))
		for e := range p.weight {
			if p.weight[e] = float64(rng.IntN(5)); rng.IntN(4) == 0 {
				p.weight[e] = math.Inf(1)
			}
		}
		want, fewest := math.Inf(1), 0
		var extend func(node, stages int, length float64)
		extend = func(node, stages int, length float64) {
			if node == n {
				if length < want || length == want && stages < fewest {
					want, fewest = length, stages
				}
				return
			}
			for j := node + 1; j <= n && stages < p.limit; j++ {
				extend(j, stages+1, length+p.arcs(j)[node])
			}
		}
		extend(0, 0, 0)
		nodes, got := p.shortest()
		if got != want || (nodes == nil) != math.IsInf(want, 1) {
			t.Fatalf("%d: length %v by %v, want %v", i, got, nodes, want)
		}
		if nodes == nil {
			continue
		}
		sum := 0.0
		for h := 1; h < len(nodes); h++ {
			sum += p.arcs(nodes[h])[nodes[h-1]]
		}
		if sum != want || nodes[0] != 0 || len(nodes)-1 > p.limit {
			t.Fatalf("%d: the path %v with at most %d stages takes %v, want %v", i, nodes, p.limit, sum, want)
		}
		if p.hops[n] > p.limit {
			if limited++; len(nodes)-1 != fewest {
				t.Fatalf("%d: %d stages for %v, want %d", i, len(nodes)-1, got, fewest)
			}
		}
	}
	if limited < 100 {
		t.Errorf("the limit binds in %d only", limited)
	}
}

// TestPriceSearchSuffices checks that Exact's price search finds the plan, and that it leaves
// little to visit: without it the label search visits millions.
func TestPriceSearchSuffices(t *testing.T) {
	w := policytest.ChatWorkload(policies.BucketEdges(131072, 4), 64, 0.6, 1)
	allocations := testing.AllocsPerRun(1, func() {
		if _, err := (Exact{}).Partition(w); err != nil {
			t.Error(err)
		}
	})
	t.Logf("%v allocations", allocations)
	if allocations > 200 {
		t.Errorf("%v allocations", allocations)
	}
	p, err := newPricing(Flow, w)
	testkit.NoError(t, err)
	s := newSearch(p.table(), p.stages(), w.Replicas)
	high, _ := s.firstPartition()
	first := s.best
	s.searchPrice(high)
	if s.best >= first || s.best > s.bound*(1+1e-3) {
		t.Errorf("the plan costs %v, the first %v, the bound is %v", s.best, first, s.bound)
	}
}

// priced returns a search whose bound is known, and whose plan is the best one at cost times
// its own.
func priced(tab table, stages, e int, cost float64) *search {
	s := newSearch(tab, stages, e)
	high, ok := s.firstPartition()
	if !ok {
		return nil
	}
	s.searchPrice(high)
	s.closeGap(labelBudget)
	s.best *= cost
	return s
}

// TestConvolveSkipsRanges checks that convolve works only on divisions that the bound leaves
// open: beneath the best plan of a search that is proved there are none.
func TestConvolveSkipsRanges(t *testing.T) {
	rng := rand.New(rand.NewPCG(12, 12))
	proved := 0
	for i := range 200 {
		s := priced(randomTable(rng, 14), 4, 30, 1)
		if s == nil || !s.proved() {
			continue
		}
		proved++
		frame := testing.AllocsPerRun(1, func() { s.costToEnd(); make2D(s.limit, s.n) })
		if got := testing.AllocsPerRun(1, func() { s.closeGap(labelBudget) }); got > 0 {
			t.Fatalf("table %d: the plan is proved, and the search goes on", i)
		}
		if !s.searchLabels(0) {
			t.Fatalf("table %d: the plan is proved, and the labels need a budget", i)
		}
		if got := testing.AllocsPerRun(1, s.convolve); got > frame+5 {
			t.Fatalf("table %d: %v allocations, want those of the frame, %v", i, got, frame)
		}
	}
	if proved < 50 {
		t.Errorf("%d of 200 searches are proved", proved)
	}
}

// make2D allocates what convolve does before it visits a range.
func make2D(limit, n int) [][][]float64 {
	out := make([][][]float64, limit+1)
	for h := range out {
		out[h] = make([][]float64, n+1)
	}
	return out
}

// TestConvolveWithoutEnough checks that convolve goes on where no number of replicas serves a
// beginning: here the first two buckets apart need more than there are.
func TestConvolveWithoutEnough(t *testing.T) {
	tab := ranges(3, map[[2]int]stage{{0, 1}: {kmin: 2}, {1, 2}: {kmin: 2}, {2, 3}: {kmin: 1}, {0, 3}: {fixed: 9, kmin: 3}})
	s := newSearch(tab, 3, 3)
	s.firstPartition()
	s.convolve()
	if got := fmt.Sprint(s.nodes, s.counts, s.best); got != "[0 3] [3] 9" {
		t.Errorf("nodes, counts and cost are %s", got)
	}
}

// TestLabelsWithinBudget checks that a label search that ends within its budget, whatever
// that is, has found the best plan.
func TestLabelsWithinBudget(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 13))
	for i := range 300 {
		n := 1 + rng.IntN(6)
		tab, stages := randomTable(rng, n), 1+rng.IntN(n)
		e := stages + rng.IntN(8)
		nodes, counts, ok := recurse(tab, stages, e)
		if !ok {
			continue
		}
		want := 0.0
		for h, k := range counts {
			want += tab.row(nodes[h+1])[nodes[h]].price(float64(k))
		}
		for budget := 0; ; budget++ {
			s := newSearch(tab, stages, e)
			s.firstPartition()
			s.best *= 1e6
			if s.searchLabels(budget) {
				if s.best > want*(1+1e-9) {
					t.Fatalf("table %d, budget %d: found %v, the best is %v", i, budget, s.best, want)
				}
				break
			}
		}
	}
}

// TestLabelsExtendOnce checks that the label search extends every beginning once: all steps
// from all beginnings, each of a number of stages, buckets and replicas, are budget enough.
// What would end the search early does not happen: the last stage is cheap enough only with
// the whole fleet, of which every beginning takes a part.
func TestLabelsExtendOnce(t *testing.T) {
	const n, stages, e = 6, 4, 8
	tab := ranges(n, nil)
	for j := 1; j <= n; j++ {
		for i := range j {
			if j < n {
				tab.row(j)[i] = stage{kmin: 1}
			} else if i > 0 { // one stage is infeasible
				tab.row(j)[i] = stage{num: e, kmin: 1}
			}
		}
	}
	type beginning struct{ stages, node, used int }
	seen, steps := map[beginning]bool{{}: true}, 0
	for todo := []beginning{{}}; len(todo) > 0; todo = todo[1:] {
		at := todo[0]
		for j := at.node + 1; j <= n; j++ {
			if j == n {
				if at.node > 0 {
					steps++ // the last stage, with what is left
				}
				continue
			}
			for k := 1; k < e-at.used && at.stages+1 < stages; k++ { // one is for the rest
				steps++
				if next := (beginning{at.stages + 1, j, at.used + k}); !seen[next] {
					seen[next] = true
					todo = append(todo, next)
				}
			}
		}
	}
	for budget, want := range map[int]bool{steps: true, steps - 1: false} {
		s := newSearch(tab, stages, e)
		s.best = 1.1 // between the last stage with the whole fleet and with one less
		if got := s.searchLabels(budget); got != want {
			t.Errorf("within %d of %d steps: %v", budget, steps, got)
		}
	}
}

// TestLabelsStayNearThePurchase checks that of a fleet of a million replicas only the numbers
// near the best are visited when the gap is narrow.
func TestLabelsStayNearThePurchase(t *testing.T) {
	tab := ranges(3, map[[2]int]stage{{0, 1}: {num: 1, kmin: 1}, {1, 2}: {num: 3, kmin: 1}, {2, 3}: {num: 2, kmin: 1}})
	s := priced(tab, 3, 1<<20, 1+1e-9)
	if s == nil || !s.searchLabels(10_000) {
		t.Error("ten thousand labels do not close a gap of one part in 10⁹")
	}
}

// TestFillHuge checks that the time to divide replicas does not grow with them.
func TestFillHuge(t *testing.T) {
	const e = 1 << 40
	stages := []stage{{num: 1, kmin: 1}, {num: 4, u: 2, kmin: 3}, {kmin: 2}}
	counts, _, ok := fill(stages, e)
	if sum := counts[0] + counts[1] + counts[2]; !ok || sum != e {
		t.Fatalf("%v, want a sum of %d", counts, e)
	}
	// The gains num/k² are equal at shares of one and two thirds.
	if ratio := float64(counts[1]) / float64(counts[0]); math.Abs(ratio-2) > 1e-6 || counts[2] != 2 {
		t.Errorf("%v: the second of the stages has %v times the replicas of the first, want 2", counts, ratio)
	}
}
