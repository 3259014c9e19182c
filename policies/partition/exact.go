package partition

import (
	"math"

	"github.com/cascadeinfer/cascade/policies"
)

// Exact finds the best partition for its objective, and proves it.
//
// It puts a price λ on replicas. At a fixed price the stages do not compete for replicas,
// so the best division is a shortest path over bucket edges, O(B²), and its value minus λ
// times the fleet is a lower bound for every feasible partition. The price with the
// highest bound is found by intersecting supporting lines. Every division found on the
// way is filled with exactly the fleet's replicas, greedily, which is optimal for given
// cuts because stages are convex; the best of these is the plan. If the bound equals the
// plan's cost, the plan is proved optimal. If a gap remains, a search over the few
// divisions below it closes it (see convolve).
//
// The number of stages is bounded, so the stage index of the paper's recursion is only
// redundant while the shortest path has few enough stages. Otherwise the path is searched
// by number of stages, O(S·B²), at the same price: the bound then covers the allowed
// partitions, and remains a proof.
//
// Optimal means up to rounding: partitions better by less than one part in 10¹² are not
// searched. Exact keeps no state and is safe for concurrent use.
type Exact struct {
	Objective Objective
	// Slack is how much more than the least cost, as a share of it, a partition may cost for having
	// fewer stages: Exact proposes the cheapest of those with the fewest stages within it, and proves
	// that, too. 0 means none: the cheapest of all. The fleet's default is DefaultSlack.
	Slack float64
}

// tolerance is the relative difference below which two costs are equal.
const tolerance = 1e-12

// priceSteps bounds the price search, which ends after 5–20 steps. The bound is for
// rounding errors; reaching it costs speed, not exactness.
const priceSteps = 200

// Partition implements policies.Partitioner.
func (x Exact) Partition(w policies.Workload) (policies.Partition, error) {
	p, err := newPricing(x.Objective, w)
	if err != nil {
		return policies.Partition{}, err
	}
	s := newSearch(p.table(), p.stages(), w.Replicas)
	if !s.solve() {
		return policies.Partition{}, policies.ErrInfeasible
	}
	if x.Slack > 0 {
		s = s.withFewestStages(s.best * (1 + x.Slack))
	}
	out := p.propose(s.nodes, s.counts)
	out.Exact = true
	return out, nil
}

// solve finds the best partition. It returns false if there is none.
func (s *search) solve() bool {
	high, ok := s.firstPartition()
	if ok {
		s.searchPrice(high)
		s.closeGap()
	}
	return ok
}

// search is one run of the price search.
type search struct {
	table
	paths
	replicas float64 // E

	bound float64 // no partition is cheaper
	top   float64 // the price that proved bound

	// The best partition so far: bucket indices, replicas, cost.
	nodes  []int
	counts []int
	best   float64
}

// A line is what one division costs as a function of the price: cost + λ·replicas.
type line struct{ cost, replicas float64 }

func (l line) at(lambda float64) float64 { return l.cost + float64(lambda*l.replicas) }

func newSearch(t table, stages, replicas int) *search {
	return &search{table: t, paths: newPaths(t.n, stages), replicas: float64(replicas), bound: math.Inf(-1), best: math.Inf(1)}
}

// firstPartition finds an initial partition: one stage, or the division that needs the
// fewest replicas. It returns its line, with at most E replicas, or false if even that
// division needs too many, which proves that there is no partition.
func (s *search) firstPartition() (line, bool) {
	if one := s.row(s.n)[0]; one.kmin <= s.replicas {
		s.tryDivision([]int{0, s.n})
		return line{one.price(s.replicas), s.replicas}, true
	}
	for e, st := range s.stages {
		s.weight[e] = st.kmin
	}
	nodes, need := s.shortest()
	if !(need <= s.replicas) {
		return line{}, false
	}
	l := line{replicas: need}
	for h := 1; h < len(nodes); h++ {
		st := s.row(nodes[h])[nodes[h-1]]
		l.cost += st.price(st.kmin)
	}
	s.tryDivision(nodes)
	return l, true
}

// proved reports whether the bound reaches the plan's cost.
func (s *search) proved() bool { return s.bound >= s.best-float64(tolerance*s.best) }

// searchPrice searches the price with the highest bound, starting at the line of a
// division with at most E replicas.
func (s *search) searchPrice(high line) {
	// Bracket: lower the price until the best division buys too many replicas.
	lambda := priceIfDivisible(s.division(s.nodes), s.replicas)
	var low line
	for {
		low = s.tryPrice(lambda)
		if s.proved() || low.replicas > s.replicas {
			break
		}
		if high = low; lambda == 0 {
			return // replicas remain unused even if they are free
		}
		if lambda /= 16; lambda < s.best*1e-18 {
			lambda = 0
		}
	}
	for range priceSteps {
		if s.proved() {
			return
		}
		lambda = max(0, (high.cost-low.cost)/(low.replicas-high.replicas))
		l := s.tryPrice(lambda)
		if v := l.at(lambda); v >= low.at(lambda)-float64(1e-14*v) {
			return // no line lies below the intersection: the bound is highest here
		}
		if l.replicas > s.replicas {
			low = l
		} else {
			high = l
		}
	}
}

// closeGap finds the best partition if the price search has not proved that it is the plan.
func (s *search) closeGap() {
	if !s.proved() {
		s.convolve()
	}
}

// tryPrice finds the best division at a price, tries it as a plan and returns its line.
func (s *search) tryPrice(lambda float64) line {
	s.reprice(lambda)
	nodes, value := s.shortest()
	if b := value - float64(lambda*s.replicas); b > s.bound {
		s.bound, s.top = b, lambda
	}
	var l line
	for h := 1; h < len(nodes); h++ {
		st := s.row(nodes[h])[nodes[h-1]]
		k := st.countAtPrice(lambda, s.replicas)
		l.cost += st.price(k)
		l.replicas += k
	}
	s.tryDivision(nodes)
	return l
}

// reprice sets the weight of every range to its cost at a price, including replicas.
func (s *search) reprice(lambda float64) {
	for e := range s.stages {
		st := &s.stages[e]
		if st.kmin > s.replicas {
			s.weight[e] = math.Inf(1)
			continue
		}
		k := st.countAtPrice(lambda, s.replicas)
		s.weight[e] = st.fixed + st.num/(k-st.u) + float64(lambda*k)
	}
}

// tryDivision fills a division with E replicas and keeps it if it is the best. Among
// equals the first is kept, so one stage wins over divisions of equal cost.
func (s *search) tryDivision(nodes []int) {
	counts, cost, ok := fill(s.division(nodes), s.replicas)
	if ok {
		s.keepBest(nodes, counts, cost)
	}
}

// division returns the stages between nodes.
func (s *search) division(nodes []int) []stage {
	stages := make([]stage, len(nodes)-1)
	for h := range stages {
		stages[h] = s.row(nodes[h+1])[nodes[h]]
	}
	return stages
}

// keepBest keeps a partition if it is cheaper than the best one by more than rounding.
func (s *search) keepBest(nodes, counts []int, cost float64) {
	if cost < s.best-float64(tolerance*s.best) || s.nodes == nil {
		s.nodes, s.counts, s.best = nodes, counts, cost
	}
}
