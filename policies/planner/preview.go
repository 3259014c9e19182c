package planner

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/partition"
)

// Preview is what a policy would propose for a workload. Nothing is adopted by it.
type Preview struct {
	Proposal policies.Partition
	Reasons  []partition.StageReason // of the proposal's stages, in their order
}

// ErrNeedsSnapshot is the error of Preview for a policy that plans on the requests in flight and
// a workload that has none.
var ErrNeedsSnapshot error = &policies.Violation{Subject: "preview", Invariant: "policy " + PolicyPaper + " plans on the requests in flight, and the workload has flows only"}

// Preview proposes a division for a workload as Replan would, without the adoption's hysteresis.
// iterationRatio is Config.IterationRatio. A policy that never divides proposes one stage, priced
// on flows. Its other errors are those of policies.Partitioner.
func (p Policy) Preview(w policies.Workload, iterationRatio float64) (Preview, error) {
	if p.paper && w.Snapshot == nil {
		return Preview{}, ErrNeedsSnapshot
	}
	native := p.pricer()
	limited, w := p.limit(native, w, iterationRatio)
	proposal, err := limited.Partition(w)
	if err != nil {
		return Preview{}, err
	}
	reasons, err := partition.Explain(native, w, proposal.Cuts, proposal.Counts)
	if err != nil {
		return Preview{}, err
	}
	return Preview{Proposal: proposal, Reasons: reasons}, nil
}

// Price predicts the cost of a plan in force under a workload. Head room counts for nothing, as it
// does for Reasons. The errors are those of partition.Objective's Price, and ErrNeedsSnapshot.
func (p Policy) Price(w policies.Workload, plan policies.Plan) (policies.Partition, error) {
	if p.paper && w.Snapshot == nil {
		return policies.Partition{}, ErrNeedsSnapshot
	}
	w.Limits.Pooling, w.Limits.Utilisation = 0, 0
	counts := make([]int, len(plan.Stages))
	for i, st := range plan.Stages {
		counts[i] = len(st.Replicas)
	}
	return p.pricer().Price(w, plan.Cuts(), counts)
}

// limit returns the planner within the bounds of new plans, and the workload that it divides: into one stage for
// a policy that never makes more.
func (p Policy) limit(native adoption.Planner, w policies.Workload, iterationRatio float64) (adoption.Planner, policies.Workload) {
	if p.planner == nil {
		w.Limits.Stages = 1
	}
	return p.bound(native, iterationRatio), w
}

// ofFlows is what limit returns for the policy. In place of the paper's, which needs the requests in
// flight, it returns the default.
func (p Policy) ofFlows(w policies.Workload, iterationRatio float64) (policies.Partitioner, policies.Workload) {
	native := p.pricer()
	if p.paper {
		native = partition.Exact{Slack: partition.DefaultSlack}
	}
	return p.limit(native, w, iterationRatio)
}

// pricer returns the planner of the policy, or for one stage the default one.
func (p Policy) pricer() adoption.Planner {
	if p.planner == nil {
		return partition.Exact{}
	}
	return p.planner
}
