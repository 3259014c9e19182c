package planner

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
)

// refinedReason is the reason of a plan that differs from the previous one only by its
// boundaries.
const refinedReason = "boundaries refined"

// Boundary returns what the replicas of a stage need to propose its end; nil where
// boundaries are not refined, or the stage is the last one.
func (p *Planner) Boundary(stage int) *partition.Boundary {
	if stage < 0 || stage >= len(p.bounds) {
		return nil
	}
	return &p.bounds[stage]
}

// Refine proposes the plan in force with the boundaries that the replicas agree on.
// Between two plans of the planner only boundaries change: members stay, so that a new
// boundary costs one route table. A denied proposal becomes an entry of the history.
func (p *Planner) Refine(v *View) Result {
	if !p.cfg.Refine || len(p.plan.Stages) < 2 {
		return Result{}
	}
	stages := slices.Clone(p.plan.Stages)
	for i, proposals := range v.Proposals(p.plan, p.cfg.Context) {
		if proposals == nil {
			continue
		}
		// The proposals assume the neighbouring boundaries as they were. Where the
		// boundary below has just moved up, it is the bound; the one above can only
		// follow.
		to := max(median(proposals), stages[i].Low+1)
		stages[i].High, stages[i+1].Low = to, to
	}
	c := p.Propose(policies.Plan{Model: p.cfg.Model, Stages: stages}, refinedReason)
	if c == nil {
		return Result{}
	}
	if err := p.Check(c.Stages); err != nil {
		return Result{Entry: &Change{Model: p.cfg.Model, Epoch: p.plan.Epoch, Decision: Denied, Reason: refinedReason + ": " + err.Error()}}
	}
	c.Decision = Refined
	return Result{Change: c}
}

// median returns the middle value; of two middle ones, the whole number of tokens
// halfway between them, rounded down. It sorts the values, which must not be empty.
func median(values []policies.Tokens) policies.Tokens {
	slices.Sort(values)
	low, high := values[(len(values)-1)/2], values[len(values)/2]
	return low + (high-low)/2
}
