package fleet

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/planner"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Order executes an operator's order and returns when it is stored. A nil error means
// that the order is in force. Other errors are those of package fleetstate, of
// ChangeSlots.Change, or of a fleet that stops.
func (f *Fleet) Order(ctx context.Context, o fleetstate.Order) error {
	ev := Ordered{Order: o}
	for range orderTries {
		_, err := f.ask(ctx, ev)
		var unchecked *fleetstate.Unchecked
		if !errors.As(err, &unchecked) {
			return err
		}
		if f.cfg.Check != nil {
			if err := f.cfg.Check(unchecked.Before, unchecked.After); err != nil {
				return unchecked.Denied(err)
			}
		}
		ev.Allowed = unchecked.After
	}
	return fmt.Errorf("%w: the plan changed each time before the site's rules had answered; try again", fleetstate.ErrNotStored)
}

// pendingOrder is an order that waits for its turn, or for the write that contains it.
type pendingOrder struct {
	order Ordered
	reply chan<- answer
	tries int
	// retryBy is set while the order waits for the object that another control plane
	// wrote at the same time: until then the object must arrive.
	retryBy time.Time
}

// addOrder queues an order. Orders are executed one after the other, each when it is
// stored; the loop does not wait for that.
func (f *Fleet) addOrder(ctx context.Context, o Ordered, reply chan<- answer) {
	switch {
	case f.writing != nil && f.writing.abandoned:
		reply <- answer{err: fmt.Errorf("%w: %w", fleetstate.ErrNotStored, f.writing.stuck(time.Now()))}
	case len(f.orders) == maxOrders:
		reply <- answer{err: fmt.Errorf("%w: %d other orders wait for the store", fleetstate.ErrNotStored, maxOrders)}
	default:
		f.orders = append(f.orders, &pendingOrder{order: o, reply: reply})
		f.nextOrder(ctx)
	}
}

// nextOrder executes the orders that wait, up to the first one that has to be stored.
func (f *Fleet) nextOrder(ctx context.Context) {
	for f.writing == nil && len(f.orders) > 0 {
		now, o := time.Now(), f.orders[0]
		if !o.retryBy.IsZero() {
			if now.Before(o.retryBy) {
				return
			}
			f.endOrder(fmt.Errorf("%w: another control plane wrote at the same time, and its object did not arrive", fleetstate.ErrNotStored))
			continue
		}
		if err := f.state.CheckOrder(now, o.order); err != nil {
			f.endOrder(err)
			continue
		}
		f.step(ctx, now, o.order)
		if f.writing == nil {
			f.endOrder(nil) // nothing has to change
			continue
		}
		f.writing.order = o
	}
}

// endOrder answers the first order.
func (f *Fleet) endOrder(err error) {
	f.latest.Store(f.state.Snapshot(time.Now()))
	f.orders[0].reply <- answer{err: err}
	f.orders = f.orders[1:]
}

// endWrite answers the order whose write has ended, or lets it wait for the object that
// another control plane wrote at the same time.
func (f *Fleet) endWrite(now time.Time, o *pendingOrder, err error) {
	switch {
	case o == nil:
	case err == nil:
		f.endOrder(nil)
	case errors.Is(err, store.ErrConflict) && o.tries < orderTries:
		o.tries++
		o.retryBy = now.Add(updateTimeout)
	default:
		f.endOrder(fmt.Errorf("%w: %w", fleetstate.ErrNotStored, err))
	}
}

// retryOrder lets an order that waits for another object be executed on top of it.
func (f *Fleet) retryOrder() {
	if len(f.orders) > 0 {
		f.orders[0].retryBy = time.Time{}
	}
}

// CheckOrder returns an error for an order that cannot be executed.
func (s *State) CheckOrder(now time.Time, ev Ordered) error {
	switch o := ev.Order.(type) {
	case fleetstate.Drain:
		return fleetstate.CheckDrain(s.registry, o.Replica)
	case fleetstate.Undrain:
		return fleetstate.CheckUndrain(s.registry, o.Replica)
	case fleetstate.ChangeSlots:
		_, err := o.Change(s.object.Slots)
		return err
	case fleetstate.ConfirmRemoval:
		if s.held == nil && s.object.ConfirmedRemoval != o.Digest {
			return fleetstate.ErrNothingHeld
		}
		if s.held != nil && s.held.Digest != o.Digest {
			return fleetstate.ErrOtherRemoval
		}
		return nil
	}
	_, err := s.resolvePlanOrder(now, ev)
	return err
}

// resolvePlanOrder works out what an order changes in a plan; nil: nothing.
func (s *State) resolvePlanOrder(now time.Time, ev Ordered) (*fleetstate.PlanOrder, error) {
	name := fleetstate.Model(ev.Order)
	m := s.model(name)
	if m == nil {
		return nil, fmt.Errorf("model %.60q: %w", name, fleetstate.ErrUnknownModel)
	}
	if r, ok := ev.Order.(fleetstate.Refuse); ok {
		until, _, held := m.planner.Hold()
		switch {
		case !s.mayRefuse(m, r):
			return nil, nil
		case held && s.micros(now) < until:
			return nil, fmt.Errorf("model %q, epoch %d: %w", name, r.Epoch, fleetstate.ErrHeldOff)
		}
	}
	return fleetstate.ResolvePlan(now, ev.Order, ev.Allowed, s.object, m.planner, s.registry.View(now, name))
}

// mayRefuse reports whether a refused plan is to be rolled back: it is in force, and not itself
// what a rollback led to.
func (s *State) mayRefuse(m *model, o fleetstate.Refuse) bool {
	return m.planner.Plan().Epoch == o.Epoch && !slices.ContainsFunc(s.history, func(c fleetstate.Change) bool {
		return c.Model == o.Model && c.Epoch == o.Epoch && c.Decision == planner.RolledBack
	})
}

// handleOrder keeps an order until it is stored; then it comes into force together with
// the plan that follows from it. NotStored drops it.
func (s *State) handleOrder(now time.Time, ev Ordered) {
	switch o := ev.Order.(type) {
	case fleetstate.Drain:
		s.setDrained(now, ev, o.Replica, true)
	case fleetstate.Undrain:
		s.setDrained(now, ev, o.Replica, false)
	case fleetstate.ChangeSlots:
		next, err := o.Change(s.object.Slots)
		if err == nil && !reflect.DeepEqual(next, s.object.Slots) {
			s.orderedSlots, s.toStore = &next, writeOrder
		}
	case fleetstate.ConfirmRemoval:
		if s.held != nil && s.CheckOrder(now, ev) == nil {
			s.confirm, s.toStore = o.Digest, writeOrder
		}
	default:
		plan, err := s.resolvePlanOrder(now, ev)
		if err != nil || plan == nil {
			return
		}
		m := s.model(fleetstate.Model(o))
		if m.planOrder, s.toStore = plan, writeOrder; plan.HoldOff {
			m.planner.HoldOff(s.micros(now))
		}
	}
}

func (s *State) setDrained(now time.Time, ev Ordered, id policies.ReplicaID, drained bool) {
	r := s.registry.Get(id)
	if s.CheckOrder(now, ev) != nil || r.Drained == drained {
		return
	}
	r.Drained, s.toStore = drained, writeOrder
	s.refresh(now, r)
}

// resetOrders drops the orders that are not stored, and applies the stored drains.
// Stored drains of replicas that are not configured are removed from the next object: a
// replica that comes back later is a new one.
func (s *State) resetOrders(now time.Time) {
	s.toStore = noWrite
	drained := make(map[policies.ReplicaID]bool, len(s.object.Drained))
	for _, id := range s.object.Drained {
		drained[id] = true
		if r := s.registry.Get(id); s.registry.Configured() && (r == nil || r.Removed) {
			s.toStore = writeCleanup
		}
	}
	for _, r := range s.registry.All() {
		if d := !r.Removed && drained[r.ID]; d != r.Drained {
			r.Drained, s.publishPending = d, true
		}
		s.refresh(now, r)
	}
	for _, m := range s.models {
		m.planOrder = nil
	}
	s.orderedSlots, s.confirm = nil, ""
}
