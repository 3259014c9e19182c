package partition

import (
	"errors"
	"math"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// StageReason says why a plan has a stage: what the stage serves, and what the plan would cost
// without it.
type StageReason struct {
	// Requests and Tokens are the stage's shares of the requests that arrive and of the tokens that
	// are generated, in [0, 1].
	Requests, Tokens float64
	// Neighbour is the stage with which it would be merged at the least cost; −1 for the only stage.
	Neighbour int
	// Rise is by how much the predicted cost of the plan would then rise, as a share of it: negative
	// if the merged stages would be cheaper, +Inf if they would break a limit. It is 0 for the only
	// stage.
	Rise float64
}

// Pricer predicts the cost of a division, as every Partitioner of this package does.
type Pricer interface {
	Price(w policies.Workload, cuts []policies.Tokens, counts []int) (policies.Partition, error)
}

// Explain returns the reasons of the stages of a division. Headroom counts for nothing, as for a plan
// in force. The errors are those of Price.
func Explain(p Pricer, w policies.Workload, cuts []policies.Tokens, counts []int) ([]StageReason, error) {
	w.Limits.Pooling, w.Limits.Utilisation = 0, 0
	plan, err := p.Price(w, cuts, counts)
	if err != nil {
		return nil, err
	}
	out := make([]StageReason, len(counts))
	setShares(w.Flow, cuts, out)
	for i := range out {
		out[i].Neighbour = -1
	}
	for i := range cuts {
		rise, err := riseWithout(p, w, plan.Cost, cuts, counts, i)
		if err != nil {
			return nil, err
		}
		out[i].merge(i+1, rise)
		out[i+1].merge(i, rise)
	}
	return out, nil
}

// merge keeps the cheaper one of two neighbours.
func (r *StageReason) merge(neighbour int, rise float64) {
	if r.Neighbour < 0 || rise < r.Rise {
		r.Neighbour, r.Rise = neighbour, rise
	}
}

// riseWithout returns by how much the cost rises, as a share, if the stages beside a cut become one
// with the replicas of both.
func riseWithout(p Pricer, w policies.Workload, cost float64, cuts []policies.Tokens, counts []int, cut int) (float64, error) {
	pooled := slices.Delete(slices.Clone(counts), cut, cut+1)
	pooled[cut] += counts[cut]
	merged, err := p.Price(w, slices.Delete(slices.Clone(cuts), cut, cut+1), pooled)
	switch {
	case errors.Is(err, policies.ErrInfeasible):
		return math.Inf(1), nil
	case err != nil:
		return 0, err
	case cost == 0: // no traffic
		return 0, nil
	}
	return merged.Cost/cost - 1, nil
}

// setShares sets the shares of the stages. Cuts count at the bucket edges at which they are priced.
func setShares(f policies.Flow, cuts []policies.Tokens, out []StageReason) {
	var requests, tokens float64
	stage := 0
	for b := range f.Edges {
		for stage < len(cuts) && b >= nodeOf(f.Edges, cuts[stage]) {
			stage++
		}
		out[stage].Requests += f.Arrivals[b]
		out[stage].Tokens += f.Tokens[b]
		requests += f.Arrivals[b]
		tokens += f.Tokens[b]
	}
	for i := range out {
		if requests > 0 {
			out[i].Requests /= requests
		}
		if tokens > 0 {
			out[i].Tokens /= tokens
		}
	}
}
