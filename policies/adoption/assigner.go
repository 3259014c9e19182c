package adoption

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

// Assigner assigns replicas to stages and prices their migrations. The zero value has
// no map of links: all replicas are alike.
type Assigner struct {
	Map *links.CostMap
	// Flow provides the crossings that weight the boundaries.
	Flow policies.Flow
	// PackHosts fills one host after the other, short to long, so that adjacent stages are
	// on one host where possible, as in the paper. By default every stage is spread over
	// the hosts, and adjacent stages share them: a host that fails takes no whole stage.
	PackHosts bool
}

// crossings returns the requests per second across each cut; nil if the flow has none.
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

// transfer prices the migrations of a plan; it returns otherwise without a map or
// without a boundary.
func (n Assigner) transfer(plan policies.Plan, otherwise policies.Transfer) policies.Transfer {
	if n.Map == nil || len(plan.Stages) < 2 {
		return otherwise
	}
	return n.Map.PlanTransfer(plan, n.crossings(plan.Cuts()))
}
