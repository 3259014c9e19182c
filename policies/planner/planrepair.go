package planner

import "github.com/cascadeinfer/cascade/policies"

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
		kept := policies.Stage{Low: s.Low, High: s.High}
		for _, id := range s.Replicas {
			if _, ok := r.byID[id]; ok {
				kept.Replicas = append(kept.Replicas, id)
				placed[id] = true
			}
		}
		r.stages = append(r.stages, kept)
	}
	for _, m := range members {
		if !placed[m.ID] {
			i := r.neediest()
			r.stages[i].Replicas = append(r.stages[i].Replicas, m.ID)
		}
	}
	r.fillStages()
	return policies.Plan{Model: plan.Model, Epoch: plan.Epoch, Stages: r.stages}
}

type planRepairer struct {
	byID   map[policies.ReplicaID]Member
	stages []policies.Stage
}

// ready counts the ready replicas of a stage.
func (r *planRepairer) ready(i int) (n int) {
	for _, id := range r.stages[i].Replicas {
		if r.byID[id].Ready {
			n++
		}
	}
	return n
}

// neediest returns the stage that a new replica joins: an empty one, else one without a
// ready replica, else the one with the most work per ready replica; of equal ones, the
// longest.
func (r *planRepairer) neediest() int {
	best, most := 0, -1.0
	for i, s := range r.stages {
		var work policies.Tokens
		for _, id := range s.Replicas {
			work += r.byID[id].Work
		}
		need := 3 * float64(maxWork)
		if n := r.ready(i); n > 0 {
			need = float64(work) / float64(n)
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
	anyReady := false
	for i := range r.stages {
		anyReady = anyReady || r.ready(i) > 0
	}
	lacksReplica := func(i int) bool {
		return len(r.stages[i].Replicas) == 0 || anyReady && r.ready(i) == 0
	}
	for i := 0; i < len(r.stages); {
		switch {
		case !lacksReplica(i):
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
	for j := range r.stages {
		n := r.ready(j)
		if n > most || n == most && from >= 0 && stageDistance(i, j) < stageDistance(i, from) {
			from, most = j, n
		}
	}
	if from < 0 {
		return false
	}
	// Stages order their replicas short to long: the ready replica at the end nearest
	// to stage i leaves, and it arrives at the end of stage i nearest to its own.
	lender := r.stages[from].Replicas
	at := -1
	for k, id := range lender {
		if r.byID[id].Ready && (at < 0 || from < i) {
			at = k
		}
	}
	id := lender[at]
	r.stages[from].Replicas = append(append([]policies.ReplicaID(nil), lender[:at]...), lender[at+1:]...)
	if from < i {
		r.stages[i].Replicas = append([]policies.ReplicaID{id}, r.stages[i].Replicas...)
	} else {
		r.stages[i].Replicas = append(r.stages[i].Replicas, id)
	}
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
	a, b := r.stages[i], r.stages[i+1]
	joined := policies.Stage{Low: a.Low, High: b.High, Replicas: append(append([]policies.ReplicaID(nil), a.Replicas...), b.Replicas...)}
	r.stages = append(r.stages[:i], append([]policies.Stage{joined}, r.stages[i+2:]...)...)
	return i
}

func stageDistance(a, b int) int { return max(a-b, b-a) }

// PlaceUnready adds the members that next lacks because they are not ready. Each joins
// the stage of next in which its old stage began. It changes next and returns it.
func PlaceUnready(next, before policies.Plan, members []Member) policies.Plan {
	for _, m := range members {
		at := before.StageOfReplica(m.ID)
		if m.Ready || at < 0 || next.StageOfReplica(m.ID) >= 0 {
			continue
		}
		stage := &next.Stages[next.StageOf(before.Stages[at].Low)]
		stage.Replicas = append(stage.Replicas, m.ID)
	}
	return next
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
