package fleet

import (
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/store"
)

// due is a proposal of what operators ordered, of the repairs that cannot wait,
// of the plans that are due and of what is to be written for the lease's sake,
// or nil. An order waits for no retry: somebody waits for it, and a refusal ends
// it.
func (s *State) due(now time.Time, ev Event) *Proposal {
	var changes []Change
	calm := !now.Before(s.retry)
	if s.ordered || calm {
		changes = s.ordersOf()
		if s.plans(now) {
			changes = append(changes, s.changes(now, ev, changes)...)
		}
	}
	switch {
	case len(changes) > 0, s.unsaved && (s.ordered || calm), s.untidy && calm && s.plans(now):
	case s.renews(now):
	default:
		return nil
	}
	return s.propose(now, changes)
}

// changes lists the changes of plan that are due, of the models that have none
// yet.
func (s *State) changes(now time.Time, ev Event, ordered []Change) (changes []Change) {
	_, tick := ev.(Tick)
	refining := tick && now.Sub(s.refined) >= refineEvery // of all models together
	for _, m := range s.models {
		if slices.ContainsFunc(ordered, func(c Change) bool { return c.Model == m.Name }) {
			s.doubt = true // look again
			continue
		}
		c, ok := s.restate(now, m)
		if !ok && s.uneasy {
			c, ok = s.repair(now, m)
		}
		if !ok && tick && !now.Before(m.next) {
			c, ok = s.replan(now, m)
		}
		if !ok && refining {
			if c, ok = s.refine(now, m); ok {
				s.refined = now
			}
		}
		if ok {
			changes = append(changes, c)
		}
	}
	s.uneasy, s.doubt = s.doubt, false
	return changes
}

// ordersOf lists the changes of plan that operators ordered.
func (s *State) ordersOf() (changes []Change) {
	for _, m := range s.models {
		if m.order != nil && len(m.order.change.Stages) > 0 {
			changes = append(changes, m.order.change)
		}
	}
	return changes
}

// propose makes the plan object out of the plans in force, the changes, and what
// is ordered and refused. Without a change of plan it has no epoch of its own.
// The holder of the lease renews it, and writes down what it sees.
func (s *State) propose(now time.Time, changes []Change) *Proposal {
	o := s.object
	o.Epoch, o.Plans = s.epoch, nil
	o.Drained, o.Pins, o.Holds, o.Refused = s.marks(now), s.pins(), s.holds(), mergeRefused(s.object.Refused, s.refusals)
	if s.slots != nil {
		o.Slots = *s.slots
	}
	if len(changes) > 0 {
		o.Epoch++
	}
	words := slices.Clone(changes)
	for _, m := range s.models {
		plan := m.plan
		for i, c := range changes {
			if c.Model == m.Name {
				plan = policies.Plan{Model: m.Name, Epoch: o.Epoch, Stages: c.Stages}
				changes[i].Epoch, words[i].Epoch = o.Epoch, o.Epoch
				o.Past = appendPast(o.Past, m.plan, c.Stages)
			}
		}
		if len(plan.Stages) > 0 {
			o.Plans = append(o.Plans, plan)
		}
		if m.order != nil && m.order.word.Decision != "" {
			words = append(words, m.order.word)
		}
	}
	if !s.plans(now) { // who plans knows which models are no more
		for _, p := range s.object.Plans {
			if s.model(p.Model) == nil {
				o.Plans = append(o.Plans, p)
			}
		}
	}
	o.Reasons = reasons(appendHistory(s.history, words))
	p := &Proposal{Object: o, Changes: changes}
	if s.lease != nil && (s.lease.Due(now) || s.lease.Leads(now)) {
		p.Object.Lease, p.lease = store.Lease(s.lease.Try(now)), true
		if s.lease.Leads(now) {
			s.record(&p.Object)
		}
	}
	s.pending = p
	return p
}
