package fleet

import (
	"slices"
	"strconv"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// repair makes the change that cannot wait for the next period, if there is
// one: a first plan, a stage without a ready replica, a replica that left the
// configuration or is drained, a ready one that has no stage yet.
func (s *State) repair(now time.Time, m *model) (Change, bool) {
	members := s.members(m)
	reason := s.urgent(now, m, members)
	if reason == "" {
		return Change{}, false
	}
	return s.change(now, m, s.mended(m, members), reason)
}

// restate is the plan that has to be stored again, because the last object in
// the store cannot come into force as it is: an old one that somebody put back
// gives way to the plan in force, and an edit that kept its epoch becomes a
// plan with an epoch of its own, so that no two plans are known by one epoch.
func (s *State) restate(now time.Time, m *model) (Change, bool) {
	c := m.again
	if len(c.Stages) == 0 {
		return Change{}, false
	}
	c.Time, c.Model, c.Decision, c.By = now, m.Name, Restated, s.rules.Name
	return c, true
}

// change describes the replacement of a model's plan; false when the new plan
// routes like the present one.
func (s *State) change(now time.Time, m *model, plan policies.Plan, reason string) (Change, bool) {
	if samePlan(plan, m.plan) || plan.Validate() != nil {
		return Change{}, false
	}
	c := Change{Time: now, Model: m.Name, Decision: Repaired, Reason: reason, By: s.rules.Name, Stages: plan.Stages}
	if len(m.plan.Stages) == 0 {
		c.Decision = Adopted // the first one
	}
	return c, true
}

// urgent says why the plan needs repair at once, or "".
func (s *State) urgent(now time.Time, m *model, members []member) string {
	switch {
	case len(m.plan.Stages) == 0:
		return "first plan"
	case s.policy.planner == nil && len(m.plan.Stages) > 1:
		return "the policy has one stage"
	case !s.known(m):
		return "the stored plan names none of the replicas"
	}
	ready := make([]int, len(m.plan.Stages))
	total := 0
	for _, r := range s.replicas {
		if r.Model != m.Name {
			continue
		}
		if r.gone && r.stage >= 0 {
			return "replica " + string(r.ID) + " left"
		}
		// With nobody to take over it stays where it is; so does one whose
		// migrator stops, which is back in a moment or found missing.
		if r.ordered() && r.stage >= 0 && len(members) > 0 {
			return "replica " + string(r.ID) + " is drained"
		}
		if r.ready() {
			if r.stage < 0 {
				return "replica " + string(r.ID) + " joined"
			}
			ready[r.stage]++
			total++
		}
	}
	if i := slices.Index(ready, 0); i < 0 || total == 0 {
		m.lacks = time.Time{}
	} else {
		if m.lacks.IsZero() {
			m.lacks = now
		}
		// When most replicas are missing, the view is likely to be at fault: a
		// network that comes back, a control plane that has just started. Proxies
		// fail over by themselves; the plan waits for more to be heard.
		if 2*total >= len(members) || now.Sub(m.lacks) >= s.rules.Grace {
			return "stage " + strconv.Itoa(i) + " lost its last ready replica"
		}
		s.doubt = true
	}
	for _, stage := range m.plan.Stages {
		for _, id := range stage.Replicas {
			if s.serving(m, id) == nil && len(members) > 0 {
				return "replica " + string(id) + " is not configured any more"
			}
		}
	}
	return ""
}

// known says that the plan names a replica of the model.
func (s *State) known(m *model) bool {
	for _, r := range s.replicas {
		if r.Model == m.Name && r.stage >= 0 {
			return true
		}
	}
	return false
}

// mended is the plan in force with the members as they are, or a single stage
// where there is nothing to keep.
func (s *State) mended(m *model, members []member) policies.Plan {
	if len(m.plan.Stages) > 0 && s.known(m) && (s.policy.planner != nil || len(m.plan.Stages) == 1) {
		return mend(m.plan, members)
	}
	var ids []policies.ReplicaID
	for _, r := range s.replicas {
		// A first stage takes everybody: who is not ready is listed as such.
		if r.Model == m.Name && !r.draining() {
			ids = append(ids, r.ID)
		}
	}
	for _, r := range s.replicas {
		if len(ids) == 0 && r.Model == m.Name && !r.gone {
			ids = append(ids, r.ID)
			break
		}
	}
	return policies.OneStagePlan(m.Name, ids)
}
