package fleet

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/internal/orders"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Order executes an operator's order and returns when it is stored. A nil error means
// that the order is in force. Other errors are those of package orders, of
// ChangeSlots.Change, or of a fleet that stops.
func (f *Fleet) Order(ctx context.Context, o orders.Order) error {
	_, err := f.ask(ctx, Ordered{o})
	return err
}

// Drain orders a drain; see orders.Drain.
func (f *Fleet) Drain(ctx context.Context, id policies.ReplicaID) error {
	return f.Order(ctx, orders.Drain{Replica: id})
}

// Undrain orders the end of a drain; see orders.Undrain.
func (f *Fleet) Undrain(ctx context.Context, id policies.ReplicaID) error {
	return f.Order(ctx, orders.Undrain{Replica: id})
}

// obey steps the state with an order and returns when it is stored. If another control
// plane wrote at the same time, the order is retried on top of that object. obey is
// called only by the loop.
func (f *Fleet) obey(ctx context.Context, o orders.Order) error {
	var err error
	for range orderTries {
		if err := f.state.CheckOrder(o); err != nil {
			return err
		}
		err = f.step(ctx, time.Now(), Ordered{o})
		f.latest.Store(f.state.Snapshot(time.Now()))
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, store.ErrConflict) || !f.awaitUpdate(ctx):
			return fmt.Errorf("%w: %w", orders.ErrNotStored, err)
		}
	}
	return fmt.Errorf("%w: %w", orders.ErrNotStored, err)
}

// awaitUpdate applies the next update of the store; it returns false when none comes.
func (f *Fleet) awaitUpdate(ctx context.Context) bool {
	timeout := time.NewTimer(updateTimeout)
	defer timeout.Stop()
	for before := f.version; f.version == before; {
		select {
		case u, ok := <-f.updates:
			if !ok {
				f.updates = nil
				return false
			}
			f.handleUpdate(ctx, u)
		case <-timeout.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// CheckOrder returns an error for an order that cannot be executed.
func (s *State) CheckOrder(o orders.Order) error {
	switch o := o.(type) {
	case orders.Drain:
		return orders.CheckDrain(s.registry, o.Replica)
	case orders.Undrain:
		return orders.CheckUndrain(s.registry, o.Replica)
	case orders.ChangeSlots:
		_, err := o.Change(s.object.Slots)
		return err
	}
	_, err := s.resolvePlanOrder(time.Time{}, o)
	return err
}

// resolvePlanOrder works out what an order changes in a plan; nil: nothing.
func (s *State) resolvePlanOrder(now time.Time, o orders.Order) (*orders.PlanOrder, error) {
	name := orders.Model(o)
	m := s.model(name)
	if m == nil {
		return nil, fmt.Errorf("model %.60q: %w", name, orders.ErrUnknownModel)
	}
	return orders.ResolvePlan(now, o, s.object, m.planner)
}

// handleOrder keeps an order until it is stored; then it comes into force together with
// the plan that follows from it. NotStored drops it.
func (s *State) handleOrder(now time.Time, o orders.Order) {
	switch o := o.(type) {
	case orders.Drain:
		s.setDrained(now, o, o.Replica, true)
	case orders.Undrain:
		s.setDrained(now, o, o.Replica, false)
	case orders.ChangeSlots:
		next, err := o.Change(s.object.Slots)
		if err == nil && !reflect.DeepEqual(next, s.object.Slots) {
			s.orderedSlots, s.toStore = &next, writeOrder
		}
	default:
		plan, err := s.resolvePlanOrder(now, o)
		if err != nil || plan == nil {
			return
		}
		m := s.model(orders.Model(o))
		if m.planOrder, s.toStore = plan, writeOrder; plan.HoldOff {
			m.planner.HoldOff(now)
		}
	}
}

func (s *State) setDrained(now time.Time, o orders.Order, id policies.ReplicaID, drained bool) {
	r := s.registry.Get(id)
	if s.CheckOrder(o) != nil || r.Drained == drained {
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
	s.orderedSlots = nil
	s.addRefusals(nil)
}
