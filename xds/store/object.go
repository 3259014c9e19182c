package store

import (
	"fmt"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// Validate returns an error for the first broken invariant.
func (o Object) Validate() error {
	if o.Epoch > MaxEpoch {
		return fmt.Errorf("epoch %d: must be at most %d", o.Epoch, uint64(MaxEpoch))
	}
	seen := make(map[string]bool, len(o.Plans))
	for _, p := range o.Plans {
		if err := p.Validate(); err != nil {
			return err
		}
		if seen[p.Model] {
			return fmt.Errorf("model %.60q has two plans", p.Model)
		}
		seen[p.Model] = true
		if p.Epoch > o.Epoch {
			return fmt.Errorf("plan of %.60q: epoch %d is greater than the object's epoch, %d", p.Model, p.Epoch, o.Epoch)
		}
		if len(p.Model) > MaxText {
			return fmt.Errorf("plan of %.60q…: a name must have at most %d bytes", p.Model, MaxText)
		}
		for _, s := range p.Stages {
			for _, r := range s.Replicas {
				if r == "" || len(r) > MaxText {
					return fmt.Errorf("plan of %.60q: replica id %.60q must have 1 to %d bytes", p.Model, r, MaxText)
				}
			}
		}
	}
	for i, r := range o.Reasons {
		if err := r.validate(); err != nil {
			return fmt.Errorf("reason %d: %w", i, err)
		}
	}
	if err := o.validateRecords(); err != nil {
		return err
	}
	if len(o.ConfirmedRemoval) > MaxText {
		return fmt.Errorf("confirmed_removal must have at most %d bytes", MaxText)
	}
	if len(o.Lease.Holder) > MaxText {
		return fmt.Errorf("lease: the holder must have at most %d bytes", MaxText)
	}
	return nil
}

// divide splits an object into what operators and planners decide, and the state of the fleet,
// which the leader writes every second. The lease is in neither.
func (o Object) divide() (plan, state Object) {
	state = Object{
		Weights: o.Weights, Unready: o.Unready, Stopping: o.Stopping,
		Ratios: o.Ratios, Counts: o.Counts,
	}
	plan = o
	plan.Lease, plan.Weights, plan.Unready, plan.Stopping, plan.Ratios, plan.Counts = Lease{}, nil, nil, nil, nil, nil
	return plan, state
}

// join is the inverse of divide, without the lease. The result shares nothing with the arguments.
func join(plan, state Object) Object {
	o, s := plan.Clone(), state.Clone()
	o.Weights, o.Unready, o.Stopping, o.Ratios, o.Counts = s.Weights, s.Unready, s.Stopping, s.Ratios, s.Counts
	return o
}

// Clone returns a deep copy.
func (o Object) Clone() Object {
	plans := o.Plans
	o.Plans = nil
	for _, p := range plans {
		stages := p.Stages
		p.Stages = nil
		for _, s := range stages {
			s.Replicas = append([]policies.ReplicaID(nil), s.Replicas...)
			p.Stages = append(p.Stages, s)
		}
		o.Plans = append(o.Plans, p)
	}
	o.Reasons, o.Slots = slices.Clone(o.Reasons), slices.Clone(o.Slots)
	for i, s := range o.Slots {
		o.Slots[i] = s.Clone()
	}
	o.Drained, o.Unready, o.Stopping = slices.Clone(o.Drained), slices.Clone(o.Unready), slices.Clone(o.Stopping)
	o.Weights, o.Ratios, o.Holds = slices.Clone(o.Weights), slices.Clone(o.Ratios), slices.Clone(o.Holds)
	o.Counts = slices.Clone(o.Counts)
	o.Pins, o.FormerPlans = slices.Clone(o.Pins), slices.Clone(o.FormerPlans)
	for i, p := range o.Pins {
		o.Pins[i].FormerPlan = p.clone()
	}
	for i, p := range o.FormerPlans {
		o.FormerPlans[i] = p.clone()
	}
	return o
}
