package fleet

import (
	"cmp"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/planner"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/store"
)

// duePropose returns a proposal with the orders of operators, the repairs that cannot
// wait, the plans that were made and the writes that the lease requires, or nil. Operator
// orders skip the retry delay. If a proposal with an order is not stored, the order has
// failed.
func (s *State) duePropose(now time.Time) *Proposal {
	var changes []fleetstate.Change
	ordered, mayRetry, leads := s.toStore == writeOrder, !now.Before(s.retryAt), s.leads(now)
	if ordered || mayRetry {
		changes = s.orderedChanges()
		if leads {
			changes = append(changes, s.planChanges(now, changes)...)
		}
	}
	switch {
	case len(changes) > 0, ordered:
	case mayRetry && s.writeAgain && leads:
	case mayRetry && s.toStore == writeCleanup && s.leads(now):
	case s.leaseWriteDue(now):
	default:
		return nil
	}
	return s.propose(now, changes)
}

// planChanges lists the changes of plan that are due for the models without an ordered
// change.
func (s *State) planChanges(now time.Time, ordered []fleetstate.Change) (changes []fleetstate.Change) {
	repairAgain := false
	for _, m := range s.models {
		if slices.ContainsFunc(ordered, func(c fleetstate.Change) bool { return c.Model == m.Name }) {
			repairAgain = true
			continue
		}
		c, again := s.planChange(now, m)
		repairAgain = repairAgain || again
		if c != nil {
			changes = append(changes, *c)
		}
	}
	s.needsRepair = repairAgain
	return changes
}

// planChange returns the change of a model's plan that is due, nil if there is none.
// again reports that the plan may need repair soon.
func (s *State) planChange(now time.Time, m *model) (c *fleetstate.Change, again bool) {
	if c = s.storeAgainChange(now, m); c != nil {
		return c, false
	}
	if s.needsRepair {
		view := s.registry.View(now, m.Name)
		if again = m.planner.RepairsSlowly(view); !again {
			var repair *planner.Change
			if repair, again = m.planner.Repair(s.micros(now), view); repair != nil {
				return s.sign(now, *repair), again
			}
		}
	}
	return s.planned(now, m), again
}

// storeAgainChange returns the plan that must be stored again because the last stored
// object cannot come into force as it is, nil if it can. The plan in force replaces an
// older plan, and a plan that was edited without a new epoch gets an epoch of its own, so
// that no two plans have the same epoch.
func (s *State) storeAgainChange(now time.Time, m *model) *fleetstate.Change {
	if len(m.storeAgain.Stages) == 0 {
		return nil
	}
	c := m.storeAgain
	c.Model, c.Decision = m.Name, fleetstate.Restated
	return s.sign(now, c)
}

// sign returns a decision of this control plane as an entry of the history.
func (s *State) sign(now time.Time, c planner.Change) *fleetstate.Change {
	return &fleetstate.Change{Change: c, Time: now, By: s.rules.Name}
}

// planPin returns a stored pin for the planner; nil: none.
func planPin(pin *store.Pin) *planner.Pin {
	if pin == nil {
		return nil
	}
	return &planner.Pin{Epoch: pin.Epoch, Former: policies.Partition{Cuts: pin.Cuts, Counts: pin.Counts}, By: pin.By}
}

// updateRatio computes the bytes per token that a model should be served with.
func (s *State) updateRatio(now time.Time, m *model) {
	if s.registry.Seen(m.Name) < minSeenForRatio {
		return
	}
	learnt, _ := s.registry.LearntRatio(now, m.Name)
	if next := nextRatio(m.ratio, learnt); s.lease != nil {
		m.wantedRatio = next
	} else if next != m.ratio {
		m.ratio, m.wantedRatio, s.publishPending = next, next, true
	}
}

// orderedChanges lists the changes of plan that operators ordered.
func (s *State) orderedChanges() (changes []fleetstate.Change) {
	for _, m := range s.models {
		if m.planOrder != nil && len(m.planOrder.Change.Stages) > 0 {
			changes = append(changes, m.planOrder.Change)
		}
	}
	return changes
}

// propose builds the plan object from the plans in force, the changes and the orders of
// operators. Without a change of plan the epoch stays. The
// holder of the lease renews it, and records the state of the replicas.
func (s *State) propose(now time.Time, changes []fleetstate.Change) *Proposal {
	o := s.object
	o.Epoch, o.Plans = s.epoch, nil
	o.Drained, o.Pins, o.Holds = s.drainedToStore(now), s.pinsToStore(), s.holdsToStore(now)
	if s.orderedSlots != nil {
		o.Slots = *s.orderedSlots
	}
	o.ConfirmedRemoval = cmp.Or(s.confirm, o.ConfirmedRemoval)
	if len(changes) > 0 {
		o.Epoch++
	}
	entries := slices.Clone(changes)
	for _, m := range s.models {
		plan := m.planner.Plan()
		for i, c := range changes {
			if c.Model == m.Name {
				o.FormerPlans = fleetstate.AppendFormer(o.FormerPlans, plan, c.Stages)
				plan = policies.Plan{Model: m.Name, Epoch: o.Epoch, Stages: c.Stages}
				changes[i].Epoch, entries[i].Epoch = o.Epoch, o.Epoch
			}
		}
		if len(plan.Stages) > 0 {
			o.Plans = append(o.Plans, plan)
		}
		if m.planOrder != nil && m.planOrder.Entry.Decision != "" {
			entries = append(entries, m.planOrder.Entry)
		}
	}
	if !s.leads(now) { // only the leader knows which models are no longer configured
		for _, p := range s.object.Plans {
			if s.model(p.Model) == nil {
				o.Plans = append(o.Plans, p)
			}
		}
	}
	o.Reasons = fleetstate.ToStored(fleetstate.Append(s.history, entries...))
	p := &Proposal{Object: o, Changes: changes}
	if s.lease != nil && (s.lease.WriteDue(now) || s.lease.Leads(now)) {
		p.Object.Lease, p.withLease = s.lease.Next(now), true
		if s.lease.Leads(now) {
			s.recordReplicas(&p.Object)
		}
	}
	s.proposal = p
	return p
}

// pinsToStore lists the stored pins combined with the ordered ones.
func (s *State) pinsToStore() []store.Pin {
	pins := slices.Clone(s.object.Pins)
	for _, m := range s.models {
		if m.planOrder != nil {
			pins = m.planOrder.ApplyPin(m.Name, pins)
		}
	}
	return pins
}

// holdsToStore lists the planners' hold-offs. A control plane that follows changes none but by an order: its clock may
// differ from the leader's.
func (s *State) holdsToStore(now time.Time) (holds []store.Hold) {
	leads := s.leads(now)
	for _, m := range s.models {
		if !leads && (m.planOrder == nil || !m.planOrder.HoldOff) {
			for _, h := range s.object.Holds {
				if h.Model == m.Name {
					holds = append(holds, h)
				}
			}
		} else if until, length, ok := m.planner.Hold(); ok {
			holds = append(holds, store.Hold{
				Model: m.Name, For: duration(length),
				Until: s.started.Add(duration(until)).UTC().Round(time.Second),
			})
		}
	}
	return holds
}

// drainedToStore lists the replicas to store as drained, sorted. Only the leader
// removes replicas that are not configured: the configuration of the others may be
// older.
func (s *State) drainedToStore(now time.Time) []policies.ReplicaID {
	var ids []policies.ReplicaID
	for _, r := range s.registry.All() {
		if r.Drained {
			ids = append(ids, r.ID)
		}
	}
	if !s.leads(now) {
		for _, id := range s.object.Drained {
			if r := s.registry.Get(id); r == nil || r.Removed {
				ids = append(ids, id)
			}
		}
	}
	slices.Sort(ids)
	return ids
}
