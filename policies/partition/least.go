package partition

import "github.com/cascadeinfer/cascade/policies"

// Limit is what a number of replicas is needed for.
type Limit int

// The limits, in the order in which they are named where several need the same number.
const (
	LimitWork        Limit = iota // the replicas' time
	LimitMemory                   // Capacity.KV
	LimitBatch                    // Capacity.Batch
	LimitIteration                // Limits.Iteration
	LimitUtilisation              // Limits.Utilisation
	LimitBursts                   // Limits.Pooling
	LimitLinks                    // what the links carry, and Capacity.TransferRate
	limits           = iota
)

// String names the limit for operators.
func (l Limit) String() string {
	if l < 0 || l >= limits {
		return "unknown"
	}
	return [...]string{"work", "KV memory", "batch size", "iteration time", "utilisation", "bursts", "links"}[l]
}

// Need is how many replicas a stage needs, and what for.
type Need struct {
	Replicas int   // at least 1
	Limit    Limit // the one that needs so many
	// Work is how many replicas' time the stage takes, above 0 only in the models of flows.
	Work float64
}

// maxNeed bounds the replicas of a Need, so that sums of them stay exact.
const maxNeed = 1 << 24

// Least returns the stages with which the fewest replicas serve the workload within its limits,
// and what each of them needs. One stage wins over more that need as many. w.Replicas is not read,
// but must be valid.
//
// The error is a *policies.Violation for an invalid workload, and policies.ErrInfeasible if no number
// of replicas is enough.
func (m Objective) Least(w policies.Workload) (cuts []policies.Tokens, needs []Need, err error) {
	if w.Replicas > 0 {
		w.Replicas = maxNeed
	}
	p, err := newPricing(m, w)
	if err != nil {
		return nil, nil, err
	}
	s := newSearch(p.table(), p.stages(), maxNeed)
	for e, st := range s.stages {
		s.weight[e] = st.kmin
	}
	nodes, need := s.shortest()
	if !(need <= maxNeed) {
		return nil, nil, policies.ErrInfeasible
	}
	for _, i := range nodes[1 : len(nodes)-1] {
		cuts = append(cuts, w.Flow.Edges[i])
	}
	return cuts, p.needsOf(nodes), nil
}

// Needs returns what each stage of a division needs. Cuts count at their nearest bucket edges, as in
// Price. The errors are those of Least, and a *policies.Violation for invalid cuts.
func (m Objective) Needs(w policies.Workload, cuts []policies.Tokens) ([]Need, error) {
	p, err := newPricing(m, w)
	if err != nil {
		return nil, err
	}
	nodes, counts := []int{0}, []int{1}
	for _, cut := range cuts {
		nodes, counts = append(nodes, nodeOf(w.Flow.Edges, cut)), append(counts, 1)
	}
	if err := validDivision(cuts, counts); err != nil {
		return nil, err
	}
	needs := p.needsOf(append(nodes, p.buckets()))
	for _, n := range needs {
		if n.Replicas > maxNeed {
			return nil, policies.ErrInfeasible
		}
	}
	return needs, nil
}

// needsOf returns what the stages between nodes need; more than maxNeed replicas stand for a limit
// that no number of replicas keeps.
func (p *pricing) needsOf(nodes []int) []Need {
	out := make([]Need, len(nodes)-1)
	for h := range out {
		i, j := nodes[h], nodes[h+1]
		l := p.over(i, j)
		needs := p.needs(l, p.base(l), i, j)
		most := LimitWork
		for limit := range Limit(limits) {
			if needs[limit] > needs[most] {
				most = limit
			}
		}
		out[h] = Need{Limit: most, Replicas: maxNeed + 1}
		if p.model != Snapshot {
			out[h].Work = l.work
		}
		if need := p.stage(l, i, j).kmin; need <= maxNeed {
			out[h].Replicas = int(need)
		}
	}
	return out
}
