package trace

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
)

// Flow counts the requests of a trace, which have arrival times, without decay. With prefixes,
// prompts hit one unbounded cache, which is an upper bound of the hits in replicas; without,
// every prompt is computed whole.
func Flow(requests []Request, edges []policies.Tokens, prefixes bool) policies.Flow {
	last := requests[len(requests)-1].At.Seconds()
	count := partition.NewFlowCounter(edges, 1000*(last+1)) // which forgets nothing
	count.Rates(0)
	var cache IdealCache
	for _, r := range requests {
		at, cached := r.At.Seconds(), policies.Tokens(0)
		if prefixes {
			cached = cache.Add(r)
		}
		count.CountArrival(at, r.Input, cached)
		count.CountTokens(at, r.Input+r.Output, int(r.Output))
		count.CountFinish(at, r.Input, r.Output)
	}
	return count.Rates(max(last, 1))
}

// InFlight returns n requests of a trace in flight, by length bucket: each as often at a length as
// it generates tokens there.
func InFlight(requests []Request, edges []policies.Tokens, n float64) []policies.Batch {
	out := make([]policies.Batch, len(edges))
	total := 0.0
	for _, r := range requests {
		input, last := float64(r.Input), r.Input+r.Output
		for b := policies.BucketOf(edges, r.Input+1); b < len(edges) && edges[b] <= last; b++ {
			low, high := max(r.Input+1, edges[b]), last
			if b+1 < len(edges) {
				high = min(last, edges[b+1]-1)
			}
			k := float64(high - low + 1)
			out[b] = out[b].Plus(policies.Batch{N: k, SumI: k * input, SumI2: k * input * input, SumL: k * float64(low+high) / 2})
			total += k
		}
	}
	for b := range out {
		out[b] = out[b].Scale(n / total)
	}
	return out
}
