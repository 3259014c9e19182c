package partition

import "math"

// paths finds shortest paths from bucket 0 to bucket n, where a step from i to
// j is one stage and costs weight of the range [i, j), laid out as in table.
type paths struct {
	last   int       // n
	limit  int       // most stages on a path
	weight []float64 // per range; +Inf where there is no step

	// Per node, without a limit: distance, predecessor, and stages on the way.
	dist []float64
	prev []int
	hops []int

	// Per number of stages h ≤ limit: distance and predecessor by exactly h, from node h on.
	within [][]float64
	before [][]int
}

func newPaths(n, limit int) paths {
	p := paths{
		last: n, limit: limit, weight: make([]float64, n*(n+1)/2),
		dist: make([]float64, n+1), prev: make([]int, n+1), hops: make([]int, n+1),
		within: make([][]float64, limit+1), before: make([][]int, limit+1),
	}
	for h := range p.within {
		p.within[h], p.before[h] = make([]float64, n+1), make([]int, n+1)
	}
	return p
}

// arcs returns the weights of the steps that end at j, by their start.
func (p *paths) arcs(j int) []float64 { return p.weight[j*(j-1)/2 : j*(j+1)/2] }

// shortest returns the nodes of a shortest path of at most limit stages and
// its length: nil and +Inf when there is none.
func (p *paths) shortest() ([]int, float64) {
	for j := 1; j <= p.last; j++ {
		best, from := math.Inf(1), 0
		for i, w := range p.arcs(j) {
			if d := p.dist[i] + w; d < best {
				best, from = d, i
			}
		}
		p.dist[j], p.prev[j], p.hops[j] = best, from, p.hops[from]+1
	}
	if math.IsInf(p.dist[p.last], 1) {
		return nil, math.Inf(1)
	}
	if p.hops[p.last] > p.limit {
		return p.shortestWithin()
	}
	nodes := make([]int, p.hops[p.last]+1)
	for h, j := len(nodes)-1, p.last; j > 0; h, j = h-1, p.prev[j] {
		nodes[h] = j
	}
	return nodes, p.dist[p.last]
}

// shortestWithin is shortest by number of stages. Among equals it returns the path of fewest
// stages.
func (p *paths) shortestWithin() ([]int, float64) {
	p.layers()
	stages := 1
	for h := 2; h <= p.limit; h++ {
		if p.within[h][p.last] < p.within[stages][p.last] {
			stages = h
		}
	}
	length := p.within[stages][p.last]
	if math.IsInf(length, 1) {
		return nil, length
	}
	nodes := make([]int, stages+1)
	for h, j := stages, p.last; j > 0; h-- {
		nodes[h] = j
		j = p.before[h][j]
	}
	return nodes, length
}

// layers fills within: the shortest path by exactly h stages to every node from h on.
func (p *paths) layers() {
	for j := range p.within[0] {
		p.within[0][j] = math.Inf(1)
	}
	p.within[0][0] = 0
	for h := 1; h <= p.limit; h++ {
		below, dist, before := p.within[h-1], p.within[h], p.before[h]
		for j := h; j <= p.last; j++ {
			best, from := math.Inf(1), 0
			for i, w := range p.arcs(j)[h-1:] {
				if d := below[h-1+i] + w; d < best {
					best, from = d, h-1+i
				}
			}
			dist[j], before[j] = best, from
		}
	}
}

// costToEnd returns, per number of stages h ≤ limit, the length of the shortest path from
// every node to the last by at most h stages.
func (p *paths) costToEnd() [][]float64 {
	out := make([][]float64, p.limit+1)
	for h := range out {
		out[h] = make([]float64, p.last+1)
		for i := range p.last {
			out[h][i] = math.Inf(1)
		}
		if h == 0 {
			continue
		}
		for j := 1; j <= p.last; j++ {
			rest := out[h-1][j]
			for i, w := range p.arcs(j) {
				out[h][i] = min(out[h][i], w+rest)
			}
		}
	}
	return out
}
