package fleet

import (
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// Refine is the boundary between two stages as the replicas of the first one
// are told of it, so that their refiners can propose a better one.
type Refine struct {
	Epoch     policies.Epoch  // of the plan; a proposal for another one counts for nothing
	Boundary  policies.Tokens // in force: the end of the first stage
	Low, High policies.Tokens // start of the first stage, end of the second
	// Peers and Successors count the replicas of the first and the second stage
	// that take requests; at least 1.
	Peers, Successors int
	Next              []policies.Batch // in flight on the second stage, all replicas together, by bucket
}

// Vote is one replica's proposal for the end of its stage. One that sees no
// reason to move it proposes the boundary in force: silence is no vote.
type Vote struct {
	Epoch    policies.Epoch // of the plan that it was made for
	Low      policies.Tokens
	Boundary policies.Tokens // 0: none
}

// measure notes what replicas are told about their stages.
func (s *State) measure(now time.Time, m *model) {
	m.held = s.meanHeld(now, m)
	m.borders = nil
	if s.rules.Refine == RefineOn && len(m.plan.Stages) > 1 {
		m.borders = s.borders(now, m)
	}
}

// borders describes the boundaries of the plan in force, short to long. They
// are made anew each time, because replies share them.
func (s *State) borders(now time.Time, m *model) []Refine {
	stages := m.plan.Stages
	ready := make([]int, len(stages))
	batches := make([][]policies.Batch, len(stages))
	for i := range batches {
		batches[i] = make([]policies.Batch, len(m.Edges))
	}
	for _, r := range s.replicas {
		if r.Model != m.Name || r.stage < 0 || !r.ready() {
			continue
		}
		ready[r.stage]++
		if r.tells(now, s.rules.Grace) && len(r.report.Snapshot) == len(m.Edges) && sameEdges(r.report.Flow.Edges, m.Edges) {
			for b, x := range r.report.Snapshot {
				batches[r.stage][b] = batches[r.stage][b].Plus(x)
			}
		}
	}
	out := make([]Refine, len(stages)-1)
	for i := range out {
		out[i] = Refine{
			Epoch: m.plan.Epoch, Boundary: stages[i].High, Low: stages[i].Low, High: stages[i+1].High,
			Peers: max(ready[i], 1), Successors: max(ready[i+1], 1), Next: batches[i+1],
		}
	}
	return out
}

// refine is the plan in force with the boundaries that the replicas agree on.
// Between two plans of the planner this is all that changes: members stay, so
// that a new boundary is one route table.
func (s *State) refine(now time.Time, m *model) (Change, bool) {
	if s.rules.Refine != RefineOn || len(m.plan.Stages) < 2 || s.pinned(m.Name) != nil {
		return Change{}, false
	}
	stages := slices.Clone(m.plan.Stages)
	for i, votes := range s.votes(now, m) {
		if votes == nil {
			continue
		}
		// The votes are for the neighbours as they were. Where the one below has
		// just come closer, it is the bound; the one above can only follow.
		to := max(median(votes), stages[i].Low+1)
		stages[i].High, stages[i+1].Low = to, to
	}
	c, ok := s.change(now, m, policies.Plan{Model: m.Name, Stages: stages}, refinedReason)
	if !ok {
		return c, false
	}
	if err := s.denied(m, c.Stages); err != nil {
		s.history = appendHistory(s.history, []Change{{
			Time: now, Model: m.Name, Epoch: m.plan.Epoch, Decision: Denied, Reason: refinedReason + ": " + err.Error(), By: s.rules.Name,
		}})
		s.refined = now // ask again no sooner than after a change
		return Change{}, false
	}
	c.Decision = Refined
	return c, true
}

// votes lists the proposals for each boundary, or nil while no more than half
// of the stage's replicas that take requests have made one: an epoch ends with
// the first new boundary, and the quickest replica shall not speak for all.
func (s *State) votes(now time.Time, m *model) [][]policies.Tokens {
	stages := m.plan.Stages
	votes := make([][]policies.Tokens, len(stages)-1)
	voters := make([]int, len(stages)-1)
	for _, r := range s.replicas {
		i := r.stage
		if r.Model != m.Name || i < 0 || i >= len(votes) || !r.tells(now, s.rules.Grace) {
			continue
		}
		voters[i]++
		v := r.report.Proposal
		longest := max(m.Context, stages[i].High) // nothing is longer than the context
		if v.Epoch == m.plan.Epoch && v.Low == stages[i].Low && v.Boundary > v.Low && v.Boundary < stages[i+1].High && v.Boundary <= longest {
			votes[i] = append(votes[i], v.Boundary)
		}
	}
	for i := range votes {
		if 2*len(votes[i]) <= voters[i] {
			votes[i] = nil
		}
	}
	return votes
}

// median is the middle vote; of two middle ones, what lies halfway, cut to a
// whole token. It sorts the votes, of which there is at least one.
func median(votes []policies.Tokens) policies.Tokens {
	slices.Sort(votes)
	low, high := votes[(len(votes)-1)/2], votes[len(votes)/2]
	return low + (high-low)/2
}
