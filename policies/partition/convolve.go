package partition

import (
	"math"
	"slices"
)

// convolve closes the gap between bound and plan in bounded time: the paper's
// recursion by number of stages, but over the replicas of each range by divide and
// conquer. A stage's price is convex in its replicas, so the best beginning for e
// replicas in total never has fewer replicas for e+1; each range takes O(E·log E)
// instead of O(E²). Ranges that the bound excludes are skipped.
func (s *search) convolve() {
	s.reprice(s.top)
	ahead := s.costToEnd()
	s.layers()

	e := int(s.replicas)
	// cost[h][j][k] is the least cost of serving the buckets below j with h stages and k
	// replicas; nil if the bound excludes node j there.
	cost := make([][][]float64, s.limit+1)
	for h := range cost {
		cost[h] = make([][]float64, s.n+1)
	}
	cost[0][0] = unreached(e)
	cost[0][0][0] = 0
	for h := 1; h <= s.limit; h++ {
		for j := h; j <= s.n; j++ {
			for i, w := range s.arcs(j) {
				if cost[h-1][i] == nil || s.within[h-1][i]+w+ahead[s.limit-h][j] >= s.upperBound() {
					continue
				}
				if cost[h][j] == nil {
					cost[h][j] = unreached(e)
				}
				combine(cost[h][j], cost[h-1][i], s.row(j)[i])
			}
		}
		if end := cost[h][s.n]; end != nil && end[e] < s.best {
			nodes, counts := s.retrace(cost, h)
			s.keepBest(nodes, counts, end[e])
		}
	}
}

// unreached returns costs for 0 to e replicas, none of them possible yet.
func unreached(e int) []float64 {
	out := make([]float64, e+1)
	for k := range out {
		out[k] = math.Inf(1)
	}
	return out
}

// combine lowers out[k] to the least below[m] + price(k−m), over all m. kmin is at most E:
// the weight of a range that needs more is +Inf, and the bound excludes it.
func combine(out, below []float64, st stage) {
	var starts []int // the m that are possible at all
	for m, v := range below {
		if !math.IsInf(v, 1) {
			starts = append(starts, m)
		}
	}
	if len(starts) == 0 {
		return
	}
	kmin := int(st.kmin)
	var rows func(low, high, from, to int)
	rows = func(low, high, from, to int) { // the best start of out[low:high] is in starts[from:to]
		if low >= high {
			return
		}
		mid := int(uint(low+high) >> 1)
		best, at := math.Inf(1), from
		for c := from; c < to && starts[c] <= mid-kmin; c++ {
			if v := below[starts[c]] + st.price(float64(mid-starts[c])); v < best {
				best, at = v, c
			}
		}
		out[mid] = min(out[mid], best)
		rows(low, mid, from, at+1)
		rows(mid+1, high, at, to)
	}
	rows(starts[0]+kmin, len(out), 0, len(starts))
}

// upperBound returns the value, with replicas priced at top, below which a better
// partition must stay.
func (s *search) upperBound() float64 {
	return s.best - float64(tolerance*math.Abs(s.best)) + float64(s.top*s.replicas)
}

// retrace returns the stages of cost[h][n][E], from the last to the first. Its sums equal
// those of combine to the bit, so it compares with ==.
func (s *search) retrace(cost [][][]float64, h int) (nodes, counts []int) {
	j, e := s.n, int(s.replicas)
	for nodes = append(nodes, j); h > 0; h-- {
		i, m := s.step(cost[h-1], cost[h][j][e], j, e)
		nodes, counts = append(nodes, i), append(counts, e-m)
		j, e = i, m
	}
	slices.Reverse(nodes)
	slices.Reverse(counts)
	return nodes, counts
}

// step finds a beginning whose value plus the last stage, which ends at j, is want.
func (s *search) step(below [][]float64, want float64, j, e int) (node, used int) {
	for i := range s.row(j) {
		for m, v := range below[i] {
			if v+s.row(j)[i].price(float64(e-m)) == want {
				return i, m
			}
		}
	}
	panic("internal error: a partition's cost has no stages behind it")
}
