package partition

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// randomTable prices every range independently, unlike any workload: ranges whose
// prices are hardly related often leave a gap between bound and plan.
func randomTable(rng *rand.Rand, n int) table {
	t := table{n: n, stages: make([]stage, n*(n+1)/2)}
	unit := []float64{1e-9, 1, 1e9}[rng.IntN(3)]
	dear := math.Exp(2 * rng.NormFloat64())
	for j := 1; j <= n; j++ {
		for i := range t.row(j) {
			u := rng.Float64() * float64(j-i) / 3
			st := stage{fixed: unit * dear * rng.Float64(), u: u, num: unit * float64(j-i) * math.Exp(2*rng.NormFloat64()), kmin: math.Floor(u) + 1}
			switch rng.IntN(12) {
			case 0:
				st.kmin = math.Inf(1)
			case 1, 2, 3:
				st.kmin += float64(rng.IntN(6))
			case 4:
				st.num = 0
			}
			t.row(j)[i] = st
		}
	}
	return t
}

// priceOf returns what stages between these buckets, with so many replicas each, cost.
func priceOf(tab table, nodes, counts []int) (sum float64) {
	for h, k := range counts {
		sum += tab.row(nodes[h+1])[nodes[h]].price(float64(k))
	}
	return sum
}

// TestGap checks the bound of the price search, and what closes a gap above it,
// against the paper's recursion.
func TestGap(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 6))
	gaps, improved, feasible, found := 0, 0, 0, 0
	tables := testkit.Size(1500, 10000)
	for i := range tables {
		tab := randomTable(rng, 1+rng.IntN(14))
		stages := 1 + rng.IntN(min(8, tab.n))
		e := stages + rng.IntN(20)
		nodes, counts, ok := recurse(tab, stages, e)
		want := priceOf(tab, nodes, counts)
		s := newSearch(tab, stages, e)
		high, possible := s.firstPartition()
		if possible != ok {
			t.Fatalf("table %d: feasible %v, want %v", i, possible, ok)
		}
		if !ok {
			continue
		}
		s.searchPrice(high)
		feasible++
		if s.bound > want*(1+1e-9) {
			t.Fatalf("table %d: the bound %v is above the optimum %v", i, s.bound, want)
		}
		if s.proved() && math.Abs(s.best-want) > 1e-9*want {
			t.Fatalf("table %d: %v is proved, %v is better", i, s.best, want)
		}
		// It starts from the first plan and not from the best one, so that the gap is wider and
		// there is something to find.
		first := newSearch(tab, stages, e)
		first.firstPartition()
		first.bound, first.top = s.bound, s.top
		before := first.best
		first.convolve()
		sum := priceOf(tab, first.nodes, first.counts)
		if math.Abs(first.best-want) > 1e-9*want || math.Abs(sum-want) > 1e-9*want {
			t.Fatalf("table %d: closed at %v (%v), want %v (bound %v)", i, first.best, sum, want, s.bound)
		}
		if first.best < before {
			found++
		}
		if s.proved() {
			continue
		}
		gaps++
		before = s.best
		if s.closeGap(); s.best < before {
			improved++
		}
	}
	t.Logf("%d feasible, %d with a gap, closing it improves %d; %d found from the first plan", feasible, gaps, improved, found)
	if gaps < tables/40 || improved < tables/1000 || found < tables/3 {
		t.Errorf("too easy: %d gaps, %d of them with a better plan behind, %d found from the first plan", gaps, improved, found)
	}
}

// randomStages returns stages that all gain from more replicas.
func randomStages(rng *rand.Rand) (stages []stage, need float64) {
	stages = make([]stage, 1+rng.IntN(8))
	for i := range stages {
		u := rng.Float64() * 3
		stages[i] = stage{u: u, num: math.Exp(3 * rng.NormFloat64()), kmin: math.Floor(u) + 1}
		need += stages[i].kmin
	}
	return stages, need
}

// TestBuyAll checks that a price is found from any other, at which no more than one replica
// of each stage is too many or too few.
func TestBuyAll(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	for range 1000 {
		stages, need := randomStages(rng)
		e := need + float64(rng.IntN(200))
		ks, from := make([]float64, len(stages)), math.Exp(8*rng.NormFloat64())
		sum, want := buyAll(stages, ks, e, from), 0.0
		for i, k := range ks {
			want += k
			if k < stages[i].kmin || k > e {
				t.Fatalf("a stage of %+v buys %v", stages[i], k)
			}
		}
		if sum != want || math.Abs(sum-e) > float64(len(stages)) {
			t.Fatalf("from the price %v: bought %v, which are %v, want about %v", from, sum, want, e)
		}
	}
}

// TestFill compares the distribution of replicas among given stages with a greedy one
// that takes the largest gain in each step.
func TestFill(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for i := range testkit.Size(2000, 5000) {
		stages := make([]stage, 1+rng.IntN(8))
		need := 0.0
		for s := range stages {
			u := rng.Float64() * 3
			stages[s] = stage{fixed: rng.Float64(), u: u, num: math.Exp(5 * rng.NormFloat64()), kmin: math.Floor(u) + 1 + float64(rng.IntN(3))}
			if rng.IntN(4) == 0 {
				stages[s].num = 0
			}
			if s > 0 && rng.IntN(4) == 0 {
				stages[s] = stages[s-1] // ties
			}
			need += stages[s].kmin
		}
		e := need + float64(rng.IntN(60)-3)
		counts, cost, ok := fill(stages, e)
		if ok != (e >= need) {
			t.Fatalf("%d: %v replicas, %v needed: %v", i, e, need, ok)
		}
		if !ok {
			continue
		}
		ks := make([]float64, len(stages))
		for s := range ks {
			ks[s] = stages[s].kmin
		}
		for range int(e - need) {
			at := 0
			for s := range ks {
				if stages[s].gain(ks[s]) > stages[at].gain(ks[at]) {
					at = s
				}
			}
			ks[at]++
		}
		want, sum := 0.0, 0
		for s := range ks {
			want += stages[s].price(ks[s])
			sum += counts[s]
		}
		if sum != int(e) || math.Abs(cost-want) > 1e-9*want {
			t.Fatalf("%d: %v cost %v, want %v costing %v", i, counts, cost, ks, want)
		}
	}
}
