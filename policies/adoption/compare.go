package adoption

import (
	"errors"
	"math"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// decide returns the decision, given the price of the present plan and whether the plan
// is over its limits.
func (m *Machine) decide(in Input, w policies.Workload, present policies.Plan, priced policies.Partition, over bool) Decision {
	stages := len(present.Stages)
	if m.slowerThanPredicted(in, w, present, priced) {
		return m.rollBack(in, w, present)
	}
	if m.slowWindows == 0 && stages > 1 && m.adoptedAt >= m.heldUntil && in.Now-m.adoptedAt >= m.holdOffLength {
		m.holdOffLength = 0 // a plan adopted since has lasted as long as the last hold-off
	}
	if w.Flow.Seen < m.config.Seen {
		return keepPlan(present, WarmingUp)
	}
	if in.Now < m.heldUntil {
		if over && !math.IsInf(priced.OneStage, 1) {
			return m.adopt(in, present, oneStage(w.Replicas), OverLimits)
		}
		return keepPlan(present, HeldOff)
	}

	best, err := m.config.Planner.Partition(w)
	switch {
	case errors.Is(err, policies.ErrInfeasible):
		return keepPlan(present, Infeasible)
	case err != nil:
		d := keepPlan(present, InvalidWorkload)
		d.Err = err
		return d
	}
	d := m.compare(in, w, present, best, priced.Cost, over)
	d.Proposal = best
	return d
}

// compare decides between the present plan, the planner's best and one stage.
func (m *Machine) compare(in Input, w policies.Workload, present policies.Plan, best policies.Partition, cost float64, over bool) Decision {
	target, stages := best, len(present.Stages)
	// Creating stages requires a larger gain than keeping them.
	worth := minGain
	if stages == 1 {
		worth = DefaultSplitGain
	}
	next := in.assigner().Assign(present, target, in.Replicas)
	placed := m.placedCost(in, w, next, best)
	target.Cost = placed
	divided := gain(placed, best.OneStage) >= worth
	if m.config.Adopt == IfNeeded {
		divided = math.IsInf(best.OneStage, 1) && (over || stages > 1)
	}
	if len(best.Counts) > 1 && !divided {
		target = oneStage(w.Replicas)
		target.Cost = best.OneStage
		next = in.assigner().Assign(present, target, in.Replicas)
	}
	d := keepPlan(present, SmallGain)
	d.Moved = CountMoves(present, next)
	// A moved replica repeats moveCost seconds of prefill in every horizon, as if the fleet
	// were smaller by that share.
	charge := float64(d.Moved) * moveCost / (horizon * float64(w.Replicas))
	d.Gain = gain(target.Cost*(1+charge), cost)
	switch {
	case equalStages(next, present):
		d.Reason, d.Gain = AlreadyBest, 0
		if len(best.Counts) > 1 && stages == 1 {
			d.Reason, d.Gain = SmallGain, gain(placed, cost)
			if m.config.Adopt == IfNeeded {
				d.Reason = NotNeeded
			}
		}
		return d
	case over:
		d.Reason = OverLimits
	case len(target.Counts) == 1:
		d.Reason = Merged
	case d.Gain >= worth:
		d.Reason = BetterPlan
	default:
		return d
	}
	d.Adopt, d.Plan = true, next
	return d
}

// placedCost returns the cost of a proposal with the replicas that the plan assigns to
// its stages; the proposed cost if that makes no difference or breaks a limit.
func (m *Machine) placedCost(in Input, w policies.Workload, plan policies.Plan, p policies.Partition) float64 {
	w.Transfer = in.assigner().transfer(plan, w.Transfer)
	if w.Transfer == in.Workload.Transfer {
		return p.Cost
	}
	priced, err := m.config.Planner.Price(w, p.Cuts, p.Counts)
	if err != nil {
		return p.Cost
	}
	return priced.Cost
}

// biasMax bounds the calibration. If the fleet is slower than the model by more, the
// cost profile is wrong, and none of its plans should be trusted.
const biasMax = 3

// adopt returns the decision for a partition for which no gain was computed.
func (m *Machine) adopt(in Input, present policies.Plan, p policies.Partition, why Reason) Decision {
	next := in.assigner().Assign(present, p, in.Replicas)
	return Decision{Adopt: true, Plan: next, Reason: why, Moved: CountMoves(present, next)}
}

// gain returns the share of old that cost saves; 1 if old is infinite.
func gain(cost, old float64) float64 {
	switch {
	case math.IsInf(old, 1):
		return 1
	case old <= 0:
		return 0
	}
	return 1 - cost/old
}

// oneStage is the partition of n replicas into one stage.
func oneStage(n int) policies.Partition { return policies.Partition{Counts: []int{n}} }

// withReplicas returns the plan with exactly the n replicas that are not draining. Cuts
// stay, and so do all replicas that can: joiners go where a stage is furthest below
// its share of the plan, and only a stage that has lost all its replicas takes one
// from another stage.
func withReplicas(near Assigner, p policies.Plan, replicas []policies.Replica, n int) policies.Plan {
	there, size := make([]int, len(p.Stages)), 0
	in := make(map[policies.ReplicaID]bool, n)
	for _, r := range replicas {
		if !r.Draining {
			in[r.ID] = true
		}
	}
	staying := 0
	for i, s := range p.Stages {
		size += len(s.Replicas)
		for _, id := range s.Replicas {
			if in[id] {
				there[i]++
				staying++
			}
		}
	}
	if size == n && staying == n {
		return p
	}
	return near.Assign(p, distributeReplicas(policies.Partition{Cuts: p.Cuts(), Counts: countsOf(p)}, there, n), replicas)
}

// ScaleCounts distributes n replicas to the stages of a partition in its proportions,
// at least one to each; with fewer replicas than stages it is one stage. The
// partition's counts must be positive.
func ScaleCounts(p policies.Partition, n int) policies.Partition {
	return distributeReplicas(p, make([]int, len(p.Counts)), n)
}

// distributeReplicas is ScaleCounts in addition to the replicas that are there already.
func distributeReplicas(p policies.Partition, there []int, n int) policies.Partition {
	shares, out := p.Counts, slices.Clone(there)
	if n < len(shares) {
		return oneStage(n)
	}
	size, left := 0, n
	for s, k := range shares {
		size += k
		left -= out[s]
	}
	// surplus is how far a stage is above its share, in parts of size·n.
	surplus := func(s int) int { return out[s]*size - shares[s]*n }
	for ; left > 0; left-- {
		at := 0
		for s := range out {
			if surplus(s) < surplus(at) {
				at = s
			}
		}
		out[at]++
	}
	for s := range out {
		if out[s] > 0 {
			continue
		}
		at := -1
		for o := range out {
			if out[o] > 1 && (at < 0 || surplus(o) > surplus(at)) {
				at = o
			}
		}
		out[at]--
		out[s]++
	}
	return policies.Partition{Cuts: p.Cuts, Counts: out}
}

// countsOf lists the sizes of a plan's stages.
func countsOf(p policies.Plan) []int {
	counts := make([]int, len(p.Stages))
	for i, s := range p.Stages {
		counts[i] = len(s.Replicas)
	}
	return counts
}

// equalStages reports whether two plans have equal stages, with replicas in equal order.
func equalStages(a, b policies.Plan) bool {
	return slices.EqualFunc(a.Stages, b.Stages, func(x, y policies.Stage) bool {
		return x.Low == y.Low && x.High == y.High && slices.Equal(x.Replicas, y.Replicas)
	})
}
