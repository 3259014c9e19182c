package fleetstate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/planner"
	"github.com/cascadeinfer/cascade/xds/store"
)

// PlanOrder is the effect of an order about a plan, kept until it is stored.
type PlanOrder struct {
	Change Change     // of the plan; no stages: none
	Entry  Change     // of the history where the plan does not change; no decision: none
	Pin    *store.Pin // to be stored; nil: none
	Unpin  bool
	// HoldOff says that new plans are to be held off.
	HoldOff bool
}

// Model returns the model of an order about a plan; "" for any other order.
func Model(o Order) string {
	switch o := o.(type) {
	case Pin:
		return o.Model
	case Unpin:
		return o.Model
	case Rollback:
		return o.Model
	case Refuse:
		return o.Model
	}
	return ""
}

// Unchecked is the error of an order about a plan that the site's rules must allow first. Asking them may take seconds.
type Unchecked struct {
	Before, After policies.Plan
	former        policies.Epoch
}

// Error implements error.
func (*Unchecked) Error() string { return "the site's rules have not been asked" }

// Denied returns the error of the order if the rules deny the plan.
func (u *Unchecked) Denied(why error) error {
	return fmt.Errorf("model %q, epoch %d: %w: %w", u.After.Model, u.former, ErrDenied, why)
}

// ResolvePlan works out what a Pin, Unpin, Rollback or Refuse of the planner's model changes,
// given the stored object and the replicas. It returns nil for an order that changes
// nothing, and an error for one that cannot be executed: *Unchecked for a plan that is not the allowed one.
func ResolvePlan(
	now time.Time, o Order, allowed policies.Plan, object store.Object, p *planner.Planner, v *planner.View,
) (*PlanOrder, error) {
	model, plan := Model(o), p.Plan()
	if len(plan.Stages) == 0 {
		return nil, fmt.Errorf("model %q: %w: there is none yet", model, ErrNoPlan)
	}
	switch o := o.(type) {
	case Unpin:
		if PinOf(object, model) == nil {
			return nil, nil
		}
		return &PlanOrder{Unpin: true, Entry: entry(now, plan, Unpinned, "unpinned", o.By)}, nil
	case Pin:
		former := FormerPlan(plan)
		var change Change
		if o.Epoch != 0 && o.Epoch != plan.Epoch {
			var next policies.Plan
			var err error
			if former, next, err = find(object, p, v, o.Epoch); err != nil {
				return nil, err
			}
			if err := checkAllowed(allowed, plan, next, former.Epoch); err != nil {
				return nil, err
			}
			change = revert(now, p, next, fmt.Sprintf("pinned to the plan of epoch %d", former.Epoch), o.By)
		}
		return &PlanOrder{
			Change: change, Pin: &store.Pin{FormerPlan: former, By: o.By, At: now},
			Entry: entry(now, plan, Pinned, fmt.Sprintf("pinned to the plan of epoch %d", former.Epoch), o.By),
		}, nil
	case Refuse:
		out, err := ResolvePlan(now, Rollback{Model: o.Model, To: o.To, By: o.By}, allowed, object, p, v)
		if err == nil {
			out.Change.Reason += ": " + o.Why
		}
		return out, err
	case Rollback:
		if pin := PinOf(object, model); pin != nil && !o.Keep {
			return nil, fmt.Errorf("model %q, epoch %d: %w", model, pin.Epoch, ErrPinned)
		}
		former, next, err := find(object, p, v, o.To)
		switch {
		case err != nil:
			return nil, err
		case SameCuts(former, plan):
			return nil, fmt.Errorf("model %q, epoch %d: %w", model, former.Epoch, ErrSamePlan)
		case !o.Keep && planner.SameRouting(next, plan):
			return nil, fmt.Errorf("model %q, epoch %d: with the replicas that are ready, %w", model, former.Epoch, ErrSamePlan)
		}
		if err := checkAllowed(allowed, plan, next, former.Epoch); err != nil {
			return nil, err
		}
		out := &PlanOrder{Change: revert(now, p, next, fmt.Sprintf("rolled back to the plan of epoch %d", former.Epoch), o.By), HoldOff: true}
		if o.Keep {
			out.Pin = &store.Pin{FormerPlan: former, By: o.By, At: now}
		}
		return out, nil
	}
	return nil, fmt.Errorf("internal error: %T is no order about a plan", o)
}

// find returns a former plan by its epoch, 0 for the last one, and the plan that
// revives it.
func find(object store.Object, p *planner.Planner, v *planner.View, epoch policies.Epoch) (former store.FormerPlan, next policies.Plan, err error) {
	plan := p.Plan()
	former, ok := FindFormer(object.FormerPlans, plan.Model, epoch)
	switch {
	case !ok && epoch == 0:
		return former, next, fmt.Errorf("model %q: %w: it has had no other", plan.Model, ErrNoPlan)
	case !ok && epoch == plan.Epoch:
		return former, next, fmt.Errorf("model %q, epoch %d: %w", plan.Model, epoch, ErrSamePlan)
	case !ok:
		return former, next, fmt.Errorf("model %q, epoch %d: %w: there are %s", plan.Model, epoch, ErrNoPlan, formerEpochs(object, plan.Model))
	}
	return former, p.Revive(v, policies.Partition{Cuts: former.Cuts, Counts: former.Counts}), nil
}

// checkAllowed returns an error for a plan that changes the routing and that the site's rules have not allowed.
func checkAllowed(allowed, plan, next policies.Plan, former policies.Epoch) error {
	if planner.SameRouting(next, plan) || planner.SameRouting(next, allowed) {
		return nil
	}
	next.Epoch = plan.Epoch + 1
	return &Unchecked{plan, next, former}
}

// revert returns the change to a revived plan; one without stages where the plan routes
// like the plan in force.
func revert(now time.Time, p *planner.Planner, next policies.Plan, reason, by string) Change {
	c := p.Propose(next, reason)
	if c == nil {
		return Change{}
	}
	c.Decision = planner.RolledBack
	return Change{Change: *c, Time: now, By: by}
}

func entry(now time.Time, plan policies.Plan, decision, reason, by string) Change {
	return Change{Change: planner.Change{Model: plan.Model, Epoch: plan.Epoch, Decision: decision, Reason: reason}, Time: now, By: by}
}

// formerEpochs lists the epochs that an operator may return to.
func formerEpochs(object store.Object, model string) string {
	var list []string
	for _, p := range object.FormerPlans {
		if p.Model == model {
			list = append(list, fmt.Sprint(p.Epoch))
		}
	}
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

// PinOf returns the stored pin of a model, or nil.
func PinOf(object store.Object, model string) *store.Pin {
	for i, p := range object.Pins {
		if p.Model == model {
			return &object.Pins[i]
		}
	}
	return nil
}

// ApplyPin returns the pins to store with the order, given the pins of all models.
func (o *PlanOrder) ApplyPin(model string, pins []store.Pin) []store.Pin {
	if o.Pin == nil && !o.Unpin {
		return pins
	}
	pins = slices.DeleteFunc(slices.Clone(pins), func(p store.Pin) bool { return p.Model == model })
	if o.Pin != nil {
		pins = append(pins, *o.Pin)
	}
	return pins
}
