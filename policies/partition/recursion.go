package partition

import (
	"math"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// Recursion is the paper's dynamic program, as written (section "Length-Aware Stage
// Partition"), over length buckets:
//
//	f(s, e, l) = min over e' and l' of f(s−1, e', l') + Q(stage [l', l) on e−e') + c(l')
//
// It is exact and takes O(S·E²·B²) time, which is why Exact exists; Exact is tested
// against it. Ties go to fewer stages. Recursion keeps no state and is safe for
// concurrent use.
type Recursion struct{ Objective Objective }

// Partition implements policies.Partitioner.
func (r Recursion) Partition(w policies.Workload) (policies.Partition, error) {
	p, err := newPricing(r.Objective, w)
	if err != nil {
		return policies.Partition{}, err
	}
	nodes, counts, ok := recurse(p.table(), p.stages(), w.Replicas)
	if !ok {
		return policies.Partition{}, policies.ErrInfeasible
	}
	out := p.propose(nodes, counts)
	out.Exact = true
	return out, nil
}

// recurse returns the best division of a table into at most the given stages,
// with exactly e replicas; false when there is none.
func recurse(t table, stages, e int) (nodes, counts []int, ok bool) {
	// f[s] holds f(s, ·, ·) by (l, e); from[s] the (l', e') that it came from.
	type origin struct{ node, used int }
	width := e + 1
	f := make([][]float64, stages+1)
	from := make([][]origin, stages+1)
	for s := range f {
		f[s] = make([]float64, (t.n+1)*width)
		from[s] = make([]origin, (t.n+1)*width)
		for x := range f[s] {
			f[s][x] = math.Inf(1)
		}
	}
	f[0][0] = 0
	for s := 1; s <= stages; s++ {
		for l := s; l <= t.n; l++ {
			for low := s - 1; low < l; low++ {
				st := t.row(l)[low]
				for k := 1; k <= e; k++ {
					q := st.price(float64(k))
					for used := s - 1; used+k <= e; used++ {
						if v := f[s-1][low*width+used] + q; v < f[s][l*width+used+k] {
							f[s][l*width+used+k] = v
							from[s][l*width+used+k] = origin{low, used}
						}
					}
				}
			}
		}
	}

	best := 0
	for s := 1; s <= stages; s++ {
		if v := f[s][t.n*width+e]; !math.IsInf(v, 1) && (best == 0 || v < f[best][t.n*width+e]) {
			best = s
		}
	}
	if best == 0 {
		return nil, nil, false
	}
	nodes = append(nodes, t.n)
	for s, at := best, (origin{t.n, e}); s > 0; s-- {
		o := from[s][at.node*width+at.used]
		nodes, counts = append(nodes, o.node), append(counts, at.used-o.used)
		at = o
	}
	slices.Reverse(nodes)
	slices.Reverse(counts)
	return nodes, counts, true
}
