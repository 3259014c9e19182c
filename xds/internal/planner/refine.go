package planner

import (
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/internal/planhistory"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// refinedReason is the reason of a plan that differs from the previous one only by its
// boundaries.
const refinedReason = "boundaries refined"

// Boundary returns what the replicas of a stage need to propose its end; nil where
// boundaries are not refined, or the stage is the last one.
func (p *Planner) Boundary(stage int) *loadreport.Boundary {
	if stage < 0 || stage >= len(p.bounds) {
		return nil
	}
	return &p.bounds[stage]
}

// boundaries describes the boundaries of the plan in force, in ascending order. It
// returns a new slice each time, because replies share it.
func (p *Planner) boundaries(now time.Time) []loadreport.Boundary {
	stages := p.plan.Stages
	ready := make([]int, len(stages))
	for _, r := range p.cfg.Registry.All() {
		if r.Model == p.cfg.Model && r.Stage >= 0 && r.Ready() {
			ready[r.Stage]++
		}
	}
	batches := p.cfg.Registry.InFlightByStage(now, p.plan, p.cfg.Edges)
	out := make([]loadreport.Boundary, len(stages)-1)
	for i := range out {
		out[i] = loadreport.Boundary{
			Epoch: p.plan.Epoch, At: stages[i].High, Low: stages[i].Low, High: stages[i+1].High,
			Peers: max(ready[i], 1), Successors: max(ready[i+1], 1), Next: batches[i+1],
		}
	}
	return out
}

// Refine proposes the plan in force with the boundaries that the replicas agree on.
// Between two plans of the planner only boundaries change: members stay, so that a new
// boundary costs one route table. A denied proposal becomes an entry of the history.
func (p *Planner) Refine(now time.Time) Result {
	if !p.cfg.Refine || len(p.plan.Stages) < 2 {
		return Result{}
	}
	stages := slices.Clone(p.plan.Stages)
	for i, proposals := range p.cfg.Registry.Proposals(now, p.plan, p.cfg.Context) {
		if proposals == nil {
			continue
		}
		// The proposals assume the neighbouring boundaries as they were. Where the
		// boundary below has just moved up, it is the bound; the one above can only
		// follow.
		to := max(median(proposals), stages[i].Low+1)
		stages[i].High, stages[i+1].Low = to, to
	}
	c := p.Propose(now, policies.Plan{Model: p.cfg.Model, Stages: stages}, refinedReason)
	if c == nil {
		return Result{}
	}
	if err := p.Check(c.Stages); err != nil {
		return Result{Entry: &planhistory.Change{
			Time: now, Model: p.cfg.Model, Epoch: p.plan.Epoch, Decision: planhistory.Denied, Reason: refinedReason + ": " + err.Error(), By: p.cfg.Author,
		}}
	}
	c.Decision = planhistory.Refined
	return Result{Change: c}
}

// median returns the middle value; of two middle ones, the whole number of tokens
// halfway between them, rounded down. It sorts the values, which must not be empty.
func median(values []policies.Tokens) policies.Tokens {
	slices.Sort(values)
	low, high := values[(len(values)-1)/2], values[len(values)/2]
	return low + (high-low)/2
}
