package partition

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestFewestClosesGaps checks that the fewest stages are found, and the cheapest of them, where the
// bound of a search with fewer stages leaves a gap: against the paper's recursion for each limit.
func TestFewestClosesGaps(t *testing.T) {
	seeds := []uint64{625, 696, 1807, 2126, 6458, 8249} // with a better plan behind the gap, which is rare
	for i := range testkit.Size(1000, 10000) {
		seeds = append(seeds, uint64(i))
	}
	between := 0
	for _, seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 17))
		tab := randomTable(rng, 2+rng.IntN(12))
		most := 1 + rng.IntN(min(8, tab.n))
		e := most + rng.IntN(20)
		least := make([]float64, most+1) // by the largest number of stages
		for stages := range least {
			least[stages] = math.Inf(1)
			if stages == 0 {
				continue
			}
			if nodes, counts, ok := recurse(tab, stages, e); ok {
				least[stages] = priceOf(tab, nodes, counts)
			}
		}
		s := newSearch(tab, most, e)
		if !s.solve() {
			continue
		}
		// At, or a little above, the least cost with so many stages: a search that stops before it does
		// not reach the limit, or stays above that cost.
		for aim := 1; aim <= len(s.counts); aim++ {
			for _, above := range []float64{1e-9, 0.1} {
				limit := max(s.best, least[aim]) * (1 + above)
				if math.IsInf(limit, 1) {
					continue
				}
				fewest := 1
				for least[fewest] > limit {
					fewest++
				}
				got := s.withFewestStages(limit)
				if len(got.counts) != fewest || math.Abs(got.best-least[fewest]) > 1e-10*least[fewest] {
					t.Fatalf("seed %d: %d stages at %v, want %d at %v, within %v", seed, len(got.counts), got.best, fewest, least[fewest], limit)
				}
				if fewest > 1 && fewest < len(s.counts) {
					between++
				}
			}
		}
	}
	if between < 100 {
		t.Errorf("only %d plans have more stages than one and fewer than the best", between)
	}
}
