package planner

import "github.com/cascadeinfer/cascade/policies"

// Period collects which requests the replicas of a model run during a planning period. The
// zero value has seen none.
//
// Every sample counts a request by the tokens per second that it gets, so that a request
// counts as many times as it generates tokens at each length, whichever stage serves it.
// Plain counts of requests in flight depend on the plan: a slow stage holds more requests,
// so it would get more replicas, until another is the slow one.
type Period struct {
	batches []policies.Batch // by bucket; sums of tokens per second instead of requests
}

// AddToPeriod adds the snapshots of fresh reports to a period.
func (v *View) AddToPeriod(edges []policies.Tokens, p *Period) {
	if len(p.batches) != len(edges) {
		p.batches = make([]policies.Batch, len(edges))
	}
	sum := make([]policies.Batch, len(edges))
	for i := range v.Replicas {
		r := &v.Replicas[i]
		if !v.fresh(r) || !(r.Load.Iteration > 0) {
			continue
		}
		clear(sum)
		r.addSnapshot(sum, edges)
		for b, x := range sum {
			p.batches[b] = p.batches[b].Plus(x.Scale(1 / r.Load.Iteration))
		}
	}
}

// add adds what another period has seen.
func (p *Period) add(o *Period) {
	if len(p.batches) == 0 {
		p.batches = o.batches
		return
	}
	for b, x := range o.batches {
		p.batches[b] = p.batches[b].Plus(x)
	}
}

// Batches returns n requests in flight, by bucket, in the proportions of the period; none if
// it has seen no request.
func (p *Period) Batches(edges []policies.Tokens, n float64) []policies.Batch {
	out := make([]policies.Batch, len(edges))
	total := 0.0
	for _, x := range p.batches {
		total += x.N
	}
	if total == 0 || len(p.batches) != len(edges) {
		return out
	}
	for b, x := range p.batches {
		out[b] = x.Scale(n / total)
	}
	return out
}
