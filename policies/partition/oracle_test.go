package partition_test

import (
	"math"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
)

func equal(a, b float64) bool {
	return a == b || math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b))
}

// oracle returns the least cost over every division and every count, by enumeration;
// +Inf when none is feasible.
func oracle(m partition.Objective, w policies.Workload) float64 {
	return slices.Min(oracleByStages(m, w))
}

// oracleByStages returns the least cost with each number of stages, from 1 to MaxStages.
func oracleByStages(m partition.Objective, w policies.Workload) []float64 {
	best := make([]float64, policies.MaxStages)
	for s := range best {
		best[s] = math.Inf(1)
	}
	most := policies.MaxStages
	if w.Limits.Stages > 0 {
		most = min(most, w.Limits.Stages)
	}
	inner := len(w.Flow.Edges) - 1
	for mask := range 1 << inner {
		var cuts []policies.Tokens
		for b := range inner {
			if mask>>b&1 == 1 {
				cuts = append(cuts, w.Flow.Edges[b+1])
			}
		}
		if len(cuts)+1 > most {
			continue
		}
		counts := make([]int, len(cuts)+1)
		var deal func(stage, left int)
		deal = func(stage, left int) {
			if stage == len(cuts) {
				if counts[stage] = left; left >= 1 {
					best[stage] = min(best[stage], price(m, w, cuts, counts))
				}
				return
			}
			for k := 1; k < left; k++ {
				counts[stage] = k
				deal(stage+1, left-k)
			}
		}
		deal(0, w.Replicas)
	}
	return best
}

// price is the definition of the models, written from the formulas of Little's law and
// of the paper: what every stage holds, how long its iterations take, and whether that
// keeps the limits.
func price(m partition.Objective, w policies.Workload, cuts []policies.Tokens, counts []int) float64 {
	ends := append(append([]policies.Tokens{}, cuts...), policies.Unbounded)
	low, total := policies.Tokens(0), 0.0
	for s, high := range ends {
		q := stagePrice(m, w, low, high, float64(counts[s]))
		total += q
		low = high
	}
	return total
}

func stagePrice(m partition.Objective, w policies.Workload, low, high policies.Tokens, k float64) float64 {
	var phi, psi, work, longest float64
	var batch policies.Batch
	crossings, received, transfer := 0.0, 0.0, 0.0
	for b, edge := range w.Flow.Edges {
		if edge == high { // the stage ends here
			crossings = w.Flow.Crossings[b]
			transfer = crossings * (w.Transfer.Base + w.Transfer.PerToken*float64(edge)) * crossingWeight(m, w)
		}
		if edge < low || edge >= high {
			continue
		}
		if edge == low && low > 0 { // the stage begins here
			received = w.Flow.Crossings[b]
		}
		phi += w.Flow.Tokens[b]
		psi += w.Flow.Reads[b]
		work += w.Cost.D1*w.Flow.Tokens[b] + w.Cost.D4*w.Flow.Reads[b] + w.Cost.D2*w.Flow.Prefill[b] + w.Cost.D3*w.Flow.Prefill2[b]
		batch = batch.Plus(w.Snapshot[b])
		if w.Flow.Tokens[b] > 0 {
			if b+1 < len(w.Flow.Edges) {
				longest = float64(w.Flow.Edges[b+1])
			} else {
				mean := w.Flow.Reads[b] / w.Flow.Tokens[b]
				longest = float64(edge) + 2*(mean-float64(edge))
			}
		}
	}
	none := math.Inf(1)
	if r := w.Capacity.TransferRate; r > 0 && max(crossings, received)/k > r {
		return none
	}
	if received*(w.Transfer.PerToken*float64(low)) > k || crossings > 0 && crossings*(w.Transfer.PerToken*float64(high)) > k {
		return none // the links carry less than what is moved
	}
	if m == partition.Snapshot {
		one := batch.Divide(int(k))
		iteration := w.QoE.OfRequest(one)
		if one.N > float64(w.Capacity.Batch) || one.SumL > float64(w.Capacity.KV) ||
			w.Limits.Iteration > 0 && iteration > w.Limits.Iteration {
			return none
		}
		return k*w.QoE.OfBatch(one) + transfer
	}
	u := work
	if k <= u || k < u+w.Limits.Pooling*math.Sqrt(u) || w.Limits.Utilisation > 0 && u/k > w.Limits.Utilisation {
		return none
	}
	d0 := w.Cost.D0
	if phi > 0 {
		d0 += w.Cost.D1 + w.Cost.D4*psi/phi // a request also waits for itself
		above := math.Min(longest-psi/phi, 2*deviation(w.Flow, low, high, psi/phi))
		d0 += w.Cost.Kappa * w.Cost.D4 * math.Max(0, above)
	}
	iteration := d0 / (1 - u/k)
	if phi*iteration/k > float64(w.Capacity.Batch) || psi*iteration/k > float64(w.Capacity.KV) ||
		w.Limits.Iteration > 0 && iteration > w.Limits.Iteration {
		return none
	}
	return phi*iteration + transfer
}

// deviation returns the standard deviation of the lengths in flight between low and
// high, with each bucket represented by its mean.
func deviation(f policies.Flow, low, high policies.Tokens, mean float64) float64 {
	var sum, tokens float64
	for b, edge := range f.Edges {
		if edge >= low && edge < high && f.Tokens[b] > 0 {
			off := f.Reads[b]/f.Tokens[b] - mean
			sum += f.Tokens[b] * off * off
			tokens += f.Tokens[b]
		}
	}
	if sum/tokens < 1e-9*mean*mean {
		return 0
	}
	return math.Sqrt(sum / tokens)
}

// crossingWeight returns what a second of delay costs under the objective.
func crossingWeight(m partition.Objective, w policies.Workload) float64 {
	if m == partition.Snapshot { // one iteration of all requests in flight on all replicas
		var all policies.Batch
		for _, s := range w.Snapshot {
			all = all.Plus(s)
		}
		return w.QoE.OfRequest(all.Divide(w.Replicas))
	}
	return 1
}
