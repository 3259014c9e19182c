package planner

import (
	"fmt"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/xds/internal/planhistory"
	"github.com/cascadeinfer/cascade/xds/internal/planrepair"
	"github.com/cascadeinfer/cascade/xds/internal/registry"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Repair proposes the change that cannot wait for the next period, nil for none: a
// first plan, a stage without a ready replica, a replica that left the configuration or
// is drained, a ready one that has no stage yet. again reports that a repair may become
// necessary merely because time passes: the caller must call Repair again soon.
func (p *Planner) Repair(now time.Time) (c *planhistory.Change, again bool) {
	members := p.members()
	reason, again := p.repairReason(now, members)
	if reason != "" {
		c = p.Propose(now, p.repaired(members), reason)
		p.initial = p.initial || len(p.plan.Stages) == 0
	}
	return c, again
}

// repairReason returns why the plan needs repair at once, or "".
func (p *Planner) repairReason(now time.Time, members []planrepair.Member) (reason string, again bool) {
	switch {
	case len(p.plan.Stages) == 0:
		return "first plan", false
	case p.cfg.Policy.planner == nil && len(p.plan.Stages) > 1:
		return "the policy has one stage", false
	case !p.namesReplica():
		return "the stored plan names none of the replicas", false
	}
	ready := make([]bool, len(p.plan.Stages))
	total := 0
	for _, r := range p.cfg.Registry.All() {
		if r.Model != p.cfg.Model {
			continue
		}
		if r.Removed && r.Stage >= 0 {
			return "replica " + string(r.ID) + " left", false
		}
		// A replica whose drain was ordered stays in its stage if there is no other
		// member. So does a replica whose migrator stops: it either returns in a moment
		// or becomes unready.
		if r.DrainOrdered() && r.Stage >= 0 && len(members) > 0 {
			return "replica " + string(r.ID) + " is drained", false
		}
		if r.Ready() {
			if r.Stage < 0 {
				return "replica " + string(r.ID) + " joined", false
			}
			ready[r.Stage] = true
			total++
		}
	}
	if i := slices.Index(ready, false); i < 0 || total == 0 {
		p.lacking = time.Time{}
	} else {
		if p.lacking.IsZero() {
			p.lacking = now
		}
		// When most replicas are missing, the control plane's view is probably wrong,
		// because the network has just come back or the control plane has just started.
		// Proxies fail over by themselves; the plan waits for more reports.
		if 2*total >= len(members) || now.Sub(p.lacking) >= p.cfg.Grace {
			return fmt.Sprintf("stage %d lost its last ready replica", i), false
		}
		again = true
	}
	for _, stage := range p.plan.Stages {
		for _, id := range stage.Replicas {
			if p.cfg.Registry.OfModel(p.cfg.Model, id) == nil && len(members) > 0 {
				return "replica " + string(id) + " is no longer configured", again
			}
		}
	}
	return "", again
}

// namesReplica reports whether the plan names a replica of the model.
func (p *Planner) namesReplica() bool {
	for _, r := range p.cfg.Registry.All() {
		if r.Model == p.cfg.Model && r.Stage >= 0 {
			return true
		}
	}
	return false
}

// members lists the replicas that may be in a stage, in the order of the registry:
// those that serve, are in the plan, or were never in one and are ready. A new replica
// joins no stage before its engine answers health checks.
func (p *Planner) members() []planrepair.Member {
	var list []planrepair.Member
	for _, r := range p.cfg.Registry.All() {
		if r.Model == p.cfg.Model && !r.DrainingNow() && (r.Ready() || r.Stage >= 0) {
			list = append(list, planrepair.Member{ID: r.ID, Ready: r.Ready(), Work: r.Work()})
		}
	}
	return list
}

// repaired returns the plan in force with the present members, or a single stage where
// no plan can be kept.
func (p *Planner) repaired(members []planrepair.Member) policies.Plan {
	if len(p.plan.Stages) > 0 && p.namesReplica() && (p.cfg.Policy.planner != nil || len(p.plan.Stages) == 1) {
		return planrepair.Repair(p.plan, members)
	}
	// A first plan has all replicas: those that are not ready are listed as such.
	var all []policies.Replica
	for _, r := range p.cfg.Registry.All() {
		if r.Model == p.cfg.Model && !r.DrainingNow() {
			all = append(all, r.Replica)
		}
	}
	for _, r := range p.cfg.Registry.All() {
		if len(all) == 0 && r.Model == p.cfg.Model && !r.Removed {
			all = append(all, r.Replica)
			break
		}
	}
	return p.firstPlan(policies.Plan{Model: p.cfg.Model}, all)
}

// remakeFirstPlan proposes the first plan anew if repairs have changed it while its replicas
// started, before the fleet has seen requests to judge it by.
func (p *Planner) remakeFirstPlan(now time.Time, present policies.Plan, eligible []policies.Replica, members []planrepair.Member) *planhistory.Change {
	if !p.initial || !p.hasHistory() || p.cfg.Registry.Flow(now, p.cfg.Model, p.cfg.Edges).Seen >= p.cfg.Seen {
		return nil
	}
	next := planrepair.PlaceUnready(p.firstPlan(present, eligible), p.plan, members)
	c := p.Propose(now, next, "first plan, for the replicas that are ready now")
	if c != nil {
		c.Decision = planhistory.Adopted
	}
	return c
}

func (p *Planner) hasHistory() bool { return p.native != nil && len(p.cfg.History.Flow.Edges) > 0 }

// firstPlan returns the plan that the planner proposes for Config.History, or one stage. It
// keeps replicas where they are in the plan before.
func (p *Planner) firstPlan(before policies.Plan, replicas []policies.Replica) policies.Plan {
	if p.hasHistory() && len(replicas) > 0 {
		w := p.workloadOf(replicas)
		w.Flow, w.Snapshot = p.cfg.History.Flow, p.cfg.History.Snapshot
		if proposed, err := p.native.Partition(w); err == nil {
			p.machine.FollowFirst(proposed, before.Epoch)
			assigner := p.near()
			assigner.Flow = w.Flow
			return assigner.Assign(before, proposed, replicas)
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
func (p *Planner) readyPlan() (policies.Plan, []policies.Replica) {
	var eligible []policies.Replica
	for _, r := range p.cfg.Registry.All() {
		if r.Model == p.cfg.Model && r.Ready() && r.Stage >= 0 {
			eligible = append(eligible, r.Replica)
		}
	}
	return p.planOf((*registry.Replica).Ready), eligible
}

// planOf returns the plan in force without the replicas that keep refuses. A stage may
// become empty.
func (p *Planner) planOf(keep func(*registry.Replica) bool) policies.Plan {
	plan := policies.Plan{Model: p.cfg.Model, Epoch: p.plan.Epoch}
	for _, stage := range p.plan.Stages {
		stage.Replicas = slices.DeleteFunc(slices.Clone(stage.Replicas), func(id policies.ReplicaID) bool {
			r := p.cfg.Registry.OfModel(p.cfg.Model, id)
			return r == nil || !keep(r)
		})
		plan.Stages = append(plan.Stages, stage)
	}
	return plan
}

// Revive returns the plan that divides the lengths as a former one did among the
// present replicas: as many to each stage as it had, or in proportion, short to long
// in the order of the plan in force. It has fewer stages where there are fewer
// replicas, and is the plan in force where none is ready.
func (p *Planner) Revive(former store.FormerPlan) policies.Plan {
	g := p.cfg.Registry
	present := p.planOf((*registry.Replica).Ready)
	var eligible []policies.Replica
	for _, stage := range present.Stages {
		for _, id := range stage.Replicas {
			eligible = append(eligible, g.Get(id).Replica)
		}
	}
	if len(eligible) == 0 {
		return p.plan
	}
	divided := adoption.ScaleCounts(policies.Partition{Cuts: former.Cuts, Counts: former.Counts}, len(eligible))
	var unready []planrepair.Member
	for _, r := range g.All() {
		if r.Model == p.cfg.Model && r.Stage >= 0 && !r.Removed && !r.DrainOrdered() && !r.Ready() {
			unready = append(unready, planrepair.Member{ID: r.ID})
		}
	}
	return planrepair.PlaceUnready(p.near().Assign(present, divided, eligible), p.plan, unready)
}

// restorePinned proposes to return to the boundaries of a pinned plan, which a
// repair may have merged while replicas were missing; it returns nil where they are in
// force, or cannot be.
func (p *Planner) restorePinned(now time.Time, pin *store.Pin) *planhistory.Change {
	p.status = fmt.Sprintf("pinned to the plan of epoch %d", pin.Epoch)
	if pin.By != "" {
		p.status += " by " + pin.By
	}
	if planhistory.SameCuts(pin.FormerPlan, p.plan) {
		return nil
	}
	next := p.Revive(pin.FormerPlan)
	if !planhistory.SameCuts(pin.FormerPlan, next) {
		p.status += ", which needs more ready replicas"
		return nil
	}
	return p.Propose(now, next, fmt.Sprintf("back to the pinned plan of epoch %d", pin.Epoch))
}
