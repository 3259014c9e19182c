package partition

import (
	"math"
	"slices"
)

// labelBudget bounds the label search, in labels visited (some tens of nanoseconds
// each). Few instances need a thousandth of it.
const labelBudget = 1 << 21

// A label is a division of the buckets below node among used replicas.
type label struct {
	node, used int
	count      int     // replicas of the last stage
	from       int     // index of the label without that stage
	value      float64 // its cost plus the price of its replicas
}

// searchLabels closes the gap between bound and plan: it visits all beginnings of a
// partition that the bound leaves open, stage by stage, and keeps the cheapest for every
// (stages, node, replicas). It returns false if it exceeded its budget; the best
// partition may still have improved.
//
// A beginning is dropped if its value plus the cheapest rest, at the price of the best
// bound, is not below the plan. As the gap is narrow, few remain. See Desrochers and
// Soumis for labels with resources.
func (s *search) searchLabels(budget int) bool {
	for e, st := range s.stages {
		s.weight[e] = st.kmin
	}
	need := s.costToEnd()
	s.reprice(s.top)
	ahead := s.costToEnd()

	all := []label{{}}
	start := 0
	for h := range s.limit {
		end := len(all)
		seen := make(map[[2]int]int) // (node, used) → index; never ranged over
		for at := start; at < end; at++ {
			from := all[at]
			left := s.replicas - float64(from.used)
			for j := from.node + 1; j <= s.n; j++ {
				slack := s.upperBound() - from.value - ahead[s.limit-h-1][j]
				if s.arcs(j)[from.node] >= slack {
					continue
				}
				st := s.row(j)[from.node]
				most := left - need[s.limit-h-1][j]
				least := st.kmin
				if j == s.n {
					least = most // the last stage takes the remaining replicas
				}
				visit := func(k float64) bool {
					v := st.price(k) + float64(s.top*k)
					if budget--; budget < 0 || v >= slack {
						return false
					}
					next := label{node: j, used: from.used + int(k), count: int(k), from: at, value: from.value + v}
					if j == s.n {
						s.finish(all, next)
						return false
					}
					key := [2]int{j, next.used}
					if i, ok := seen[key]; !ok {
						seen[key] = len(all)
						all = append(all, next)
					} else if next.value < all[i].value {
						all[i] = next
					}
					return true
				}
				// The value is convex in k and least at the purchase.
				first := max(least, min(st.countAtPrice(s.top, s.replicas), most))
				for k := first; k >= least && k <= most && visit(k); k-- {
				}
				for k := first + 1; k <= most && visit(k); k++ {
				}
				if budget < 0 {
					return false
				}
			}
		}
		start = end
	}
	return true
}

// upperBound returns the value, with replicas priced at top, below which a better
// partition must stay.
func (s *search) upperBound() float64 {
	return s.best - float64(tolerance*math.Abs(s.best)) + float64(s.top*s.replicas)
}

// finish converts a label of the last node to a partition and keeps it if it is the best.
func (s *search) finish(all []label, l label) {
	nodes, counts := []int{}, []int{}
	cost := 0.0
	for ; l.node > 0; l = all[l.from] {
		nodes = append(nodes, l.node)
		counts = append(counts, l.count)
		cost += s.row(l.node)[all[l.from].node].price(float64(l.count))
	}
	nodes = append(nodes, 0)
	slices.Reverse(nodes)
	slices.Reverse(counts)
	s.keepBest(nodes, counts, cost)
}
