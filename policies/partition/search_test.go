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
	s.closeGap()
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
// little to visit.
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
	s.closeGap()
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
		if got := testing.AllocsPerRun(1, func() { s.closeGap() }); got > 0 {
			t.Fatalf("table %d: the plan is proved, and the search goes on", i)
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
