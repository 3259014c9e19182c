package planner

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// Member is one replica that may be in a stage: configured and not draining.
type Member struct {
	ID    policies.ReplicaID
	Ready bool
	Work  policies.Tokens
}

// maxWork is more work than any stage can have.
const maxWork = 1 << 40

// RepairPlan returns the plan with the fewest changes under which the stages hold exactly
// the members and each stage has a ready one. Replicas that are no members are removed;
// new members join the stage with the most work per ready replica; a stage without a
// ready replica borrows one from the stage with the most of them, or merges with its
// longer neighbour where no stage can spare one. The other cuts and the order of the
// replicas stay. If there is no member, or no ready one to place, Repair moves no
// replica: no other plan would serve better.
//
// The plan must be valid; the result is valid and keeps its epoch.
func RepairPlan(plan policies.Plan, members []Member) policies.Plan {
	if len(members) == 0 {
		return plan
	}
	r := planRepairer{byID: make(map[policies.ReplicaID]Member, len(members))}
	for _, m := range members {
		r.byID[m.ID] = m
	}
	placed := make(map[policies.ReplicaID]bool, len(members))
	for _, s := range plan.Stages {
		kept := repairedStage{Stage: policies.Stage{Low: s.Low, High: s.High}}
		for _, id := range s.Replicas {
			if m, ok := r.byID[id]; ok {
				kept.add(m)
				placed[id] = true
			}
		}
		r.stages = append(r.stages, kept)
	}
	for _, m := range members {
		if !placed[m.ID] {
			r.stages[r.neediest()].add(m)
		}
	}
	r.fillStages()
	out := policies.Plan{Model: plan.Model, Epoch: plan.Epoch, Stages: make([]policies.Stage, len(r.stages))}
	for i, s := range r.stages {
		out.Stages[i] = s.Stage
	}
	return out
}

type planRepairer struct {
	byID   map[policies.ReplicaID]Member
	stages []repairedStage
}

// repairedStage is a stage with sums over its replicas, because thousands may join at once.
type repairedStage struct {
	policies.Stage
	ready int
	work  policies.Tokens
}

// add appends a replica.
func (s *repairedStage) add(m Member) {
	s.Replicas = append(s.Replicas, m.ID)
	s.work += m.Work
	if m.Ready {
		s.ready++
	}
}

// neediest returns the stage that a new replica joins: an empty one, else one without a
// ready replica, else the one with the most work per ready replica; of equal ones, the
// longest.
func (r *planRepairer) neediest() int {
	best, most := 0, -1.0
	for i, s := range r.stages {
		need := 3 * float64(maxWork)
		if s.ready > 0 {
			need = float64(s.work) / float64(s.ready)
		} else if len(s.Replicas) > 0 {
			need = 2 * float64(maxWork)
		}
		if need >= most {
			best, most = i, need
		}
	}
	return best
}

// fillStages gives every stage a replica, and a ready one as long as there are any.
func (r *planRepairer) fillStages() {
	anyReady := slices.ContainsFunc(r.stages, func(s repairedStage) bool { return s.ready > 0 })
	for i := 0; i < len(r.stages); {
		switch s := r.stages[i]; {
		case len(s.Replicas) > 0 && (s.ready > 0 || !anyReady):
			i++
		case r.borrow(i):
			i++
		default:
			i = r.merge(i)
		}
	}
}

// borrow moves one ready replica into stage i from the stage with the most ready ones;
// of equal ones, the nearest. It returns false when no stage can spare one.
func (r *planRepairer) borrow(i int) bool {
	from, most := -1, 1
	for j, s := range r.stages {
		if s.ready > most || s.ready == most && from >= 0 && stageDistance(i, j) < stageDistance(i, from) {
			from, most = j, s.ready
		}
	}
	if from < 0 {
		return false
	}
	// Stages order their replicas short to long: the ready replica at the end nearest
	// to stage i leaves, and it arrives at the end of stage i nearest to its own.
	lender, stage := &r.stages[from], &r.stages[i]
	at := -1
	for k, id := range lender.Replicas {
		if r.byID[id].Ready && (at < 0 || from < i) {
			at = k
		}
	}
	id := lender.Replicas[at]
	lender.Replicas = slices.Delete(lender.Replicas, at, at+1)
	if from < i {
		stage.Replicas = slices.Insert(stage.Replicas, 0, id)
	} else {
		stage.Replicas = append(stage.Replicas, id)
	}
	lender.ready--
	stage.ready++
	return true
}

// merge joins stage i with the next longer one, or the last stage with the one before
// it, and returns the index at which fillStages continues.
func (r *planRepairer) merge(i int) int {
	if len(r.stages) == 1 {
		return 1
	}
	if i == len(r.stages)-1 {
		i--
	}
	a, b := &r.stages[i], r.stages[i+1]
	a.High, a.Replicas, a.ready, a.work = b.High, append(a.Replicas, b.Replicas...), a.ready+b.ready, a.work+b.work
	r.stages = slices.Delete(r.stages, i+1, i+2)
	return i
}

func stageDistance(a, b int) int { return max(a-b, b-a) }

// PlaceUnready adds the members that next lacks because they are not ready. Each joins
// the stage of next in which its old stage began. It changes next and returns it.
func PlaceUnready(next, before policies.Plan, members []Member) policies.Plan {
	old, placed := stagesByReplica(before), stagesByReplica(next)
	for _, m := range members {
		at, was := old[m.ID]
		if _, is := placed[m.ID]; m.Ready || !was || is {
			continue
		}
		stage := &next.Stages[next.StageOf(before.Stages[at].Low)]
		stage.Replicas = append(stage.Replicas, m.ID)
	}
	return next
}

// stagesByReplica returns the stage of each replica of a plan.
func stagesByReplica(p policies.Plan) map[policies.ReplicaID]int {
	out := make(map[policies.ReplicaID]int)
	for i, s := range p.Stages {
		for _, id := range s.Replicas {
			out[id] = i
		}
	}
	return out
}

// SameRouting reports whether two plans route alike: equal ranges and, stage by
// stage, the same replicas in any order. Epochs do not count.
func SameRouting(a, b policies.Plan) bool {
	if a.Model != b.Model || len(a.Stages) != len(b.Stages) {
		return false
	}
	for i, s := range a.Stages {
		o := b.Stages[i]
		if s.Low != o.Low || s.High != o.High || len(s.Replicas) != len(o.Replicas) {
			return false
		}
		in := make(map[policies.ReplicaID]bool, len(s.Replicas))
		for _, id := range s.Replicas {
			in[id] = true
		}
		for _, id := range o.Replicas {
			if !in[id] {
				return false
			}
		}
	}
	return true
}
