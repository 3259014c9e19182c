package partition

import (
	"math"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// TwoPhase is the paper's heuristic (section "Length-Aware Stage Partition",
// "Optimizing efficiency"): the best chain of stages with one replica each, then merging
// of the neighbours that gain most, until none gains. It is fast and not exact.
//
// The paper leaves three cases open. This implementation resolves them as follows:
//
//   - More replicas than buckets: no chain is that long. The chain has one stage per
//     bucket, and the remaining replicas go one by one to the stage where they save
//     most. Merging adds replicas up.
//   - More stages than allowed: merging continues past the last gain, with the least
//     loss, down to the limit.
//   - Limits: the paper's model has none. Here a chain is judged first by how many
//     replicas its stages lack, then by cost, in both phases; merging also continues
//     while any stage lacks one.
//
// Its policies.ErrInfeasible is not a proof: merging may end in a stage that lacks
// replicas although another division has enough.
//
// TwoPhase keeps no state and is safe for concurrent use.
type TwoPhase struct{ Objective Objective }

// A verdict orders partial plans: replicas lacking first, then cost.
type verdict struct{ lack, cost float64 }

func (v verdict) less(o verdict) bool {
	return v.lack < o.lack || v.lack == o.lack && v.cost < o.cost
}

func (v verdict) plus(o verdict) verdict  { return verdict{v.lack + o.lack, v.cost + o.cost} }
func (v verdict) minus(o verdict) verdict { return verdict{v.lack - o.lack, v.cost - o.cost} }

// unservable is the number of lacking replicas if no number suffices; a finite value
// keeps sums and differences ordered.
const unservable = 1 << 40

// judge rates a stage with k replicas; the cost assumes that it had the replicas it lacks.
func (s stage) judge(k float64) verdict {
	if math.IsInf(s.kmin, 1) {
		return verdict{unservable, s.fixed}
	}
	return verdict{min(unservable, max(0, s.kmin-k)), s.price(max(k, s.kmin))}
}

// link is one stage of the chain: buckets [low, high) on k replicas.
type link struct {
	low, high int
	k         float64
	verdict   verdict
}

// Partition implements policies.Partitioner.
func (x TwoPhase) Partition(w policies.Workload) (policies.Partition, error) {
	p, err := newPricing(x.Objective, w)
	if err != nil {
		return policies.Partition{}, err
	}
	t := p.table()
	links := mergeNeighbours(t, chain(t, min(w.Replicas, t.n), w.Replicas), p.stages())
	if slices.ContainsFunc(links, func(l link) bool { return l.verdict.lack > 0 }) {
		return policies.Partition{}, policies.ErrInfeasible
	}
	return p.proposeLinks(links), nil
}

// Chain returns the plan of the first phase alone, which the paper compares with (section "Length-aware
// vs. naïve stage partitioning"): one replica for each stage, as many stages as there are replicas,
// buckets and stages that a plan may have; what is left of the replicas goes where it saves most. The
// chain is not judged: its stages may lack replicas, and Cost is +Inf then.
func (x TwoPhase) Chain(w policies.Workload) (policies.Partition, error) {
	p, err := newPricing(x.Objective, w)
	if err != nil {
		return policies.Partition{}, err
	}
	return p.proposeLinks(chain(p.table(), p.stages(), w.Replicas)), nil
}

// proposeLinks returns the partition of a chain.
func (p *pricing) proposeLinks(links []link) policies.Partition {
	nodes, counts := []int{0}, []int{}
	for _, l := range links {
		nodes, counts = append(nodes, l.high), append(counts, int(l.k))
	}
	return p.propose(nodes, counts)
}

// chain returns the best division into s stages of one replica each, with the surplus of the replicas where it saves most.
func chain(t table, s, replicas int) []link {
	links := oneReplicaChain(t, s)
	addSurplus(t, links, replicas-len(links))
	return links
}

// oneReplicaChain returns the best division into exactly s stages of one replica each.
func oneReplicaChain(t table, s int) []link {
	worst := verdict{lack: math.Inf(1)}
	best := make([]verdict, t.n+1) // by exactly h stages up to node j
	for j := range best {
		best[j] = worst
	}
	best[0] = verdict{}
	from := make([][]int, s+1)
	for h := 1; h <= s; h++ {
		from[h] = make([]int, t.n+1)
		// Descending, so that best[i] for i < j still counts h−1 stages.
		for j := t.n; j >= h; j-- {
			now := worst
			for i := h - 1; i < j; i++ {
				if v := best[i].plus(t.row(j)[i].judge(1)); v.less(now) {
					now, from[h][j] = v, i
				}
			}
			best[j] = now
		}
	}
	links := make([]link, s)
	for h, j := s, t.n; h > 0; h-- {
		i := from[h][j]
		links[h-1] = link{low: i, high: j, k: 1, verdict: t.row(j)[i].judge(1)}
		j = i
	}
	return links
}

// addSurplus distributes the surplus replicas one by one.
func addSurplus(t table, links []link, surplus int) {
	if surplus == 0 {
		return
	}
	saves := make([]verdict, len(links))
	save := func(i int) {
		l := links[i]
		saves[i] = l.verdict.minus(t.row(l.high)[l.low].judge(l.k + 1))
	}
	for i := range links {
		save(i)
	}
	for range surplus {
		at := 0
		for i := range saves {
			if saves[at].less(saves[i]) {
				at = i
			}
		}
		links[at].k++
		links[at].verdict = t.row(links[at].high)[links[at].low].judge(links[at].k)
		save(at)
	}
}

// mergeNeighbours merges neighbours, those that gain most first.
func mergeNeighbours(t table, links []link, limit int) []link {
	for len(links) > 1 {
		lacking := false
		var best link
		var most verdict
		at := 0 // none: links[0] has no neighbour before it
		for i, l := range links {
			lacking = lacking || l.verdict.lack > 0
			if i == 0 {
				continue
			}
			a := links[i-1]
			one := link{low: a.low, high: l.high, k: a.k + l.k}
			one.verdict = t.row(one.high)[one.low].judge(one.k)
			if gain := a.verdict.plus(l.verdict).minus(one.verdict); at == 0 || most.less(gain) {
				at, most, best = i, gain, one
			}
		}
		if len(links) <= limit && !lacking && !(verdict{}).less(most) {
			break
		}
		links[at-1] = best
		links = append(links[:at], links[at+1:]...)
	}
	return links
}
