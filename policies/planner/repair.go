package planner

import (
	"slices"
	"strconv"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
)

// Repair proposes the change that cannot wait for the next period, nil for none: a
// first plan, a stage without a ready replica, a replica that left the configuration or
// is drained, a ready one that has no stage yet. again reports that a repair may become
// necessary merely because time passes: the caller must call Repair again soon.
func (p *Planner) Repair(now policies.Micros, v *View) (c *Change, again bool) {
	members := listMembers(v)
	reason, again := p.repairReason(now, v, members)
	if reason != "" {
		c = p.Propose(p.repaired(v, members), reason)
		p.initial = p.initial || len(p.plan.Stages) == 0
	}
	return c, again
}

// repairReason returns why the plan needs repair at once, or "".
func (p *Planner) repairReason(now policies.Micros, v *View, members []Member) (reason string, again bool) {
	switch {
	case len(p.plan.Stages) == 0:
		return "first plan", false
	case p.cfg.Policy.planner == nil && len(p.plan.Stages) > 1:
		return "the policy has one stage", false
	case !namesReplica(v):
		return "the stored plan names none of the replicas", false
	}
	ready := make([]bool, len(p.plan.Stages))
	total := 0
	for i := range v.Replicas {
		r := &v.Replicas[i]
		if r.Removed && r.Stage >= 0 {
			return "replica " + string(r.ID) + " left", false
		}
		// A replica whose drain was ordered stays in its stage if there is no other
		// member. So does a replica whose migrator stops: it either returns in a moment
		// or becomes unready.
		if r.DrainOrdered && r.Stage >= 0 && len(members) > 0 {
			return "replica " + string(r.ID) + " is drained", false
		}
		if r.Prefill {
			if r.Stage >= 0 {
				return "replica " + string(r.ID) + " has become a prefill replica", false
			}
			continue
		}
		if r.Ready {
			if r.Stage < 0 {
				return "replica " + string(r.ID) + " joined", false
			}
			ready[r.Stage] = true
			total++
		}
	}
	if i := slices.Index(ready, false); i < 0 || total == 0 {
		p.lacks = false
	} else {
		if !p.lacks {
			p.lacks, p.lacking = true, now
		}
		// When most replicas are missing, the control plane's view is probably wrong,
		// because the network has just come back or the control plane has just started.
		// Proxies fail over by themselves; the plan waits for more reports.
		if 2*total >= len(members) || now-p.lacking >= p.cfg.Grace {
			return "stage " + strconv.Itoa(i) + " lost its last ready replica", false
		}
		again = true
	}
	for _, stage := range p.plan.Stages {
		for _, id := range stage.Replicas {
			if v.Get(id) == nil && len(members) > 0 {
				return "replica " + string(id) + " is no longer configured", again
			}
		}
	}
	return "", again
}

// namesReplica reports whether the plan in force names a replica of the model.
func namesReplica(v *View) bool {
	for i := range v.Replicas {
		if v.Replicas[i].Stage >= 0 {
			return true
		}
	}
	return false
}

// listMembers lists the replicas that may be in a stage, in the order of the view:
// those that serve, are in the plan, or were never in one and are ready. A new replica
// joins no stage before its engine answers health checks.
func listMembers(v *View) []Member {
	var list []Member
	for i := range v.Replicas {
		if r := &v.Replicas[i]; r.MayJoin() && (r.Ready || r.Stage >= 0) {
			list = append(list, Member{ID: r.ID, Ready: r.Ready, Work: r.Work()})
		}
	}
	return list
}

// keepsPlan reports whether a repair changes the plan in force, and makes no first plan.
func (p *Planner) keepsPlan(v *View) bool {
	return len(p.plan.Stages) > 0 && namesReplica(v) && (p.cfg.Policy.planner != nil || len(p.plan.Stages) == 1)
}

// repaired returns the plan in force with the present members, or a single stage where
// no plan can be kept.
func (p *Planner) repaired(v *View, members []Member) policies.Plan {
	if p.keepsPlan(v) {
		return RepairPlan(p.plan, members)
	}
	// A first plan has all replicas: those that are not ready are listed as such.
	var all []policies.Replica
	for i := range v.Replicas {
		if r := &v.Replicas[i]; r.MayJoin() {
			all = append(all, r.Replica)
		}
	}
	for i := range v.Replicas {
		if r := &v.Replicas[i]; len(all) == 0 && !r.Removed && !r.Prefill {
			all = append(all, r.Replica)
			break
		}
	}
	return p.firstPlan(v, policies.Plan{Model: p.cfg.Model}, all)
}

// remakeFirstPlan proposes the first plan anew if repairs have changed it while its replicas
// started, before the fleet has seen requests to judge it by.
func (p *Planner) remakeFirstPlan(v *View, present policies.Plan, eligible []policies.Replica, members []Member) *Change {
	if !p.initial || !p.hasHistory() || v.Flow(p.cfg.Edges).Seen >= p.cfg.Seen {
		return nil
	}
	next := PlaceUnready(p.firstPlan(v, present, eligible), p.plan, members)
	c := p.Propose(next, "first plan, for the replicas that are ready now")
	if c != nil {
		c.Decision = Adopted
	}
	return c
}

func (p *Planner) hasHistory() bool { return p.native != nil && len(p.cfg.History.Flow.Edges) > 0 }

// firstPlan returns the plan that the planner proposes for Config.History, or one stage if there
// is no history or stages would save too little. It keeps replicas where they are in the plan before.
func (p *Planner) firstPlan(v *View, before policies.Plan, replicas []policies.Replica) policies.Plan {
	if p.hasHistory() && len(replicas) > 0 {
		w := p.workloadOf(v, replicas)
		w.Flow, w.Snapshot = p.cfg.History.Flow, p.cfg.History.Snapshot
		if proposed, err := p.native.Partition(w); err == nil {
			assigner := p.near(v)
			assigner.Flow = w.Flow
			return assigner.Assign(before, p.machine.ChooseFirst(proposed, before.Epoch), replicas)
		}
	}
	ids := make([]policies.ReplicaID, len(replicas))
	for i, r := range replicas {
		ids[i] = r.ID
	}
	return policies.OneStagePlan(p.cfg.Model, ids)
}

// readyPlan returns the ready part of the plan in force, and its replicas. It is not
// valid when a stage has none.
func (p *Planner) readyPlan(v *View) (policies.Plan, []policies.Replica) {
	var eligible []policies.Replica
	for i := range v.Replicas {
		if r := &v.Replicas[i]; r.Ready && r.Stage >= 0 && r.MayJoin() {
			eligible = append(eligible, r.Replica)
		}
	}
	return p.readyStages(v), eligible
}

// readyStages returns the plan in force without the replicas that are not ready, or that have
// become prefill replicas. A stage may become empty.
func (p *Planner) readyStages(v *View) policies.Plan {
	plan := policies.Plan{Model: p.cfg.Model, Epoch: p.plan.Epoch}
	for _, stage := range p.plan.Stages {
		stage.Replicas = slices.DeleteFunc(slices.Clone(stage.Replicas), func(id policies.ReplicaID) bool {
			r := v.Get(id)
			return r == nil || !r.Ready || !r.MayJoin()
		})
		plan.Stages = append(plan.Stages, stage)
	}
	return plan
}

// Revive returns the plan that divides the lengths as a former one did, by its cuts and
// counts, among the present replicas: as many to each stage as it had, or in proportion,
// short to long in the order of the plan in force. It has fewer stages where there are
// fewer replicas, and is the plan in force where none is ready.
func (p *Planner) Revive(v *View, former policies.Partition) policies.Plan {
	present := p.readyStages(v)
	var eligible []policies.Replica
	for _, stage := range present.Stages {
		for _, id := range stage.Replicas {
			eligible = append(eligible, v.Get(id).Replica)
		}
	}
	if len(eligible) == 0 {
		return p.plan
	}
	divided := adoption.ScaleCounts(former, len(eligible))
	var unready []Member
	for i := range v.Replicas {
		if r := &v.Replicas[i]; r.Stage >= 0 && !r.Prefill && !r.Removed && !r.DrainOrdered && !r.Ready {
			unready = append(unready, Member{ID: r.ID})
		}
	}
	return PlaceUnready(p.near(v).Assign(present, divided, eligible), p.plan, unready)
}

// Pin keeps a model at a former plan.
type Pin struct {
	Epoch  policies.Epoch     // of that plan
	Former policies.Partition // its cuts and counts
	By     string             // the operator; may be empty
}

// restorePinned proposes to return to the boundaries of a pinned plan, which a
// repair may have merged while replicas were missing; it returns nil where they are in
// force, or cannot be.
func (p *Planner) restorePinned(v *View, pin Pin) *Change {
	epoch := strconv.FormatUint(uint64(pin.Epoch), 10)
	p.status = "pinned to the plan of epoch " + epoch
	if pin.By != "" {
		p.status += " by " + pin.By
	}
	if slices.Equal(pin.Former.Cuts, p.plan.Cuts()) {
		return nil
	}
	next := p.Revive(v, pin.Former)
	if !slices.Equal(pin.Former.Cuts, next.Cuts()) {
		p.status += ", which needs more ready replicas"
		return nil
	}
	return p.Propose(next, "back to the pinned plan of epoch "+epoch)
}
