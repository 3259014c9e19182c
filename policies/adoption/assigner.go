package adoption

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/proximity"
)

// Assigner is what hand-overs between the replicas of a fleet cost. The zero value knows
// nothing: all replicas are alike.
type Assigner struct {
	Map *proximity.Map
	// Flow has the crossings by which boundaries count.
	Flow policies.Flow
}

// crossings are the requests a second over each cut; none where the flow has none.
func (n Assigner) crossings(cuts []policies.Tokens) []float64 {
	if len(n.Flow.Edges) == 0 || len(n.Flow.Crossings) != len(n.Flow.Edges) {
		return nil
	}
	out := make([]float64, len(cuts))
	for i, cut := range cuts {
		out[i] = n.Flow.Crossings[policies.BucketOf(n.Flow.Edges, cut)]
	}
	return out
}

// transfer prices the hand-overs of a plan; otherwise is the price where nothing is
// known, or nothing is handed over.
func (n Assigner) transfer(plan policies.Plan, otherwise policies.Transfer) policies.Transfer {
	if n.Map == nil || len(plan.Stages) < 2 {
		return otherwise
	}
	return n.Map.PlanTransfer(plan, n.crossings(cutsOf(plan)))
}
