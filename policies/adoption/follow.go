package adoption

import (
	"errors"
	"math"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// proposal is a partition that was adopted. The zero value is none.
type proposal struct {
	cuts   []policies.Tokens
	counts []int
	epoch  policies.Epoch // of the plan that it replaces
}

// ChooseFirst returns the partition of a first plan that is made of a proposal and replaces an epoch: the proposal, or one
// stage if stages in force would be merged that cost as much: they save less than a tenth, or are not needed
// (IfNeeded). Distances between replicas count for nothing yet.
//
// With Always it is the proposal, however small its gain: its boundaries may be refined, and if a repair merges
// its stages, as the replicas are not ready yet, the next better proposal is adopted, whatever it gains. Of several
// proposals, as replicas become ready, the one with most stages counts.
func (m *Machine) ChooseFirst(p policies.Partition, replaces policies.Epoch) policies.Partition {
	if m.config.Adopt != Always {
		least := minGain
		if m.config.Adopt == IfNeeded {
			least = 1 // one stage cannot carry it
		}
		if gain(p.Cost, p.OneStage) < least {
			replicas := 0
			for _, n := range p.Counts {
				replicas += n
			}
			return oneStage(replicas)
		}
		return p
	}
	if len(p.Counts) > len(m.followed.counts) {
		m.followed = proposal{p.Cuts, p.Counts, replaces}
	}
	return p
}

// follow adopts what the planner proposes if that differs from its last proposal; see
// Always. The boundaries of the plan in force may have been refined since then.
func (m *Machine) follow(in Input, w policies.Workload) Decision {
	switch {
	case w.Flow.Seen < m.config.Seen || idle(w):
		return keepPlan(in.Plan, WarmingUp)
	case in.Now < m.heldUntil:
		return keepPlan(in.Plan, HeldOff)
	}
	best, err := m.config.Planner.Partition(w)
	switch {
	case errors.Is(err, policies.ErrInfeasible):
		return keepPlan(in.Plan, Infeasible)
	case err != nil:
		d := keepPlan(in.Plan, InvalidWorkload)
		d.Err = err
		return d
	}
	d := keepPlan(in.Plan, AlreadyBest)
	d.Proposal = best
	last := m.followed
	// No planner chose a plan in which a repair has merged the stages of the last proposal.
	merged := in.Plan.Epoch != last.epoch && len(in.Plan.Stages) < len(last.counts)
	if in.Plan.Epoch == last.epoch || !slices.Equal(countsOf(in.Plan), last.counts) {
		// The last proposal did not come into force, or others have changed the plan.
		last = proposal{cuts: in.Plan.Cuts(), counts: countsOf(in.Plan)}
	}
	if slices.Equal(best.Cuts, last.cuts) && slices.Equal(best.Counts, last.counts) {
		return d
	}
	d.Present, err = m.config.Planner.Price(w, last.cuts, last.counts)
	least := samplingError(w, m.config.Period)
	if merged {
		least = 0
	}
	if d.Gain = gain(best.Cost, d.Present.Cost); err == nil && d.Gain <= least {
		d.Reason = SmallGain
		return d
	}
	m.followed = proposal{best.Cuts, best.Counts, in.Plan.Epoch}
	next := in.assigner().Assign(in.Plan, best, in.Replicas)
	if equalStages(next, in.Plan) {
		return d
	}
	d.Adopt, d.Plan, d.Reason, d.Moved = true, next, NewProposal, CountMoves(in.Plan, next)
	return d
}

// samplingError returns two standard errors of the work in so many seconds of a flow, as a
// share: every bucket's work varies as the number of requests that reach it does, if they
// arrive independently. Two plans whose costs differ by less on the requests of one period
// are equally good, as far as these show; the planner chooses among such plans by chance.
func samplingError(w policies.Workload, seconds float64) float64 {
	c, f := w.Cost, w.Flow
	var total, variance float64
	for b := range f.Tokens {
		work := float64(c.D1*f.Tokens[b]) + float64(c.D4*f.Reads[b]) + float64(c.D2*f.Prefill[b]) + float64(c.D3*f.Prefill2[b])
		total += work
		variance += float64(work*work) / max(1, float64((f.Arrivals[b]+f.Crossings[b])*seconds))
	}
	if total == 0 {
		return 0
	}
	return 2 * math.Sqrt(variance) / total
}

// idle reports whether a workload has neither flow nor requests in flight.
func idle(w policies.Workload) bool {
	return !slices.ContainsFunc(w.Flow.Tokens, func(x float64) bool { return x > 0 }) &&
		!slices.ContainsFunc(w.Snapshot, func(b policies.Batch) bool { return b.N > 0 })
}
