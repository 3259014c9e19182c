package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Why an order about a plan cannot be obeyed.
var (
	ErrNoModel = errors.New("no such model is configured")
	ErrNoPlan  = errors.New("no such plan is kept")
	ErrPinned  = errors.New("its plan is pinned: unpin it first, or pin the one to go back to")
	ErrSame    = errors.New("the plan in force divides the lengths like it already")
	ErrDenied  = errors.New("the site's rules deny it")
)

// Pin is an order to keep a model's plan until Unpin: the one in force, or an
// earlier one, which comes into force again under a new epoch. Repairs and
// drains still change who serves which stage.
type Pin struct {
	Model string
	Epoch policies.Epoch // 0: the plan in force
	By    string         // who asks for it
}

// Unpin ends a Pin; the planner takes over.
type Unpin struct{ Model, By string }

// Rollback is an order to put an earlier plan in force again, under a new
// epoch, and to hold new plans off for as long as after a plan that was taken
// back for its slowness.
type Rollback struct {
	Model string
	To    policies.Epoch // 0: the plan before the one in force
	Keep  bool           // pin it, too
	By    string
}

func (Pin) event()      {}
func (Unpin) event()    {}
func (Rollback) event() {}

// order is what an operator asked for a model, until it is stored.
type order struct {
	change Change     // of plan; no stages: none
	pin    *store.Pin // to be stored; nil: none
	unpin  bool
	word   Change // for the history, where there is no change of plan
}

// Pin gives a Pin order and returns when it is stored. The error wraps
// ErrNoModel, ErrNoPlan, ErrDenied or ErrNotSaved, or is that of a fleet that
// stops.
func (f *Fleet) Pin(ctx context.Context, p Pin) error { return f.order(ctx, p) }

// Unpin gives an Unpin order, which does nothing for a model that is not pinned.
// The error wraps ErrNoModel or ErrNotSaved, or is that of a fleet that stops.
func (f *Fleet) Unpin(ctx context.Context, u Unpin) error { return f.order(ctx, u) }

// Rollback gives a Rollback order. The error wraps ErrNoModel, ErrNoPlan,
// ErrPinned, ErrSame, ErrDenied or ErrNotSaved, or is that of a fleet that stops.
func (f *Fleet) Rollback(ctx context.Context, r Rollback) error { return f.order(ctx, r) }

// permitsPlan says why an order about a plan cannot be obeyed, or nil.
func (s *State) permitsPlan(ev Event) error {
	var name string
	var epoch policies.Epoch
	switch ev := ev.(type) {
	case Pin:
		name, epoch = ev.Model, ev.Epoch
	case Unpin:
		name = ev.Model
	case Rollback:
		name, epoch = ev.Model, ev.To
	}
	m := s.model(name)
	if m == nil {
		return fmt.Errorf("model %.60q: %w", name, ErrNoModel)
	}
	if len(m.plan.Stages) == 0 {
		return fmt.Errorf("model %q: %w: there is none yet", name, ErrNoPlan)
	}
	rollback, back := ev.(Rollback)
	if p := s.pinned(name); back && p != nil && !rollback.Keep {
		return fmt.Errorf("model %q, epoch %d: %w", name, p.Epoch, ErrPinned)
	}
	if _, off := ev.(Unpin); off || !back && (epoch == 0 || epoch == m.plan.Epoch) {
		return nil
	}
	p, ok := s.former(name, epoch)
	switch {
	case !ok && epoch == 0:
		return fmt.Errorf("model %q: %w: it has had no other", name, ErrNoPlan)
	case !ok && epoch == m.plan.Epoch:
		return fmt.Errorf("model %q, epoch %d: %w", name, epoch, ErrSame)
	case !ok:
		return fmt.Errorf("model %q, epoch %d: %w: there are %s", name, epoch, ErrNoPlan, s.formerList(name))
	case back && sameCuts(p, m.plan):
		return fmt.Errorf("model %q, epoch %d: %w", name, p.Epoch, ErrSame)
	case back && !rollback.Keep && samePlan(s.revived(m, p), m.plan):
		return fmt.Errorf("model %q, epoch %d: with the replicas that are ready, %w", name, p.Epoch, ErrSame)
	}
	if next := s.revived(m, p); !samePlan(next, m.plan) {
		if err := s.denied(m, next.Stages); err != nil {
			return fmt.Errorf("model %q, epoch %d: %w: %w", name, p.Epoch, ErrDenied, err)
		}
	}
	return nil
}

// formerList names the epochs that an operator may go back to.
func (s *State) formerList(model string) string {
	var list []string
	for _, p := range s.object.Past {
		if p.Model == model {
			list = append(list, fmt.Sprint(p.Epoch))
		}
	}
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

// pinned is the pin of a model, as stored, or nil.
func (s *State) pinned(model string) *store.Pin {
	for i, p := range s.object.Pins {
		if p.Model == model {
			return &s.object.Pins[i]
		}
	}
	return nil
}

// take notes an order about a plan. It comes into force when it is stored;
// Refused takes it back.
func (s *State) take(now time.Time, ev Event) {
	if s.permitsPlan(ev) != nil {
		return
	}
	var m *model
	o := &order{}
	switch ev := ev.(type) {
	case Pin:
		m = s.model(ev.Model)
		p := pastOf(m.plan)
		o.word = Change{Decision: Pinned, Reason: fmt.Sprintf("pinned to the plan of epoch %d", p.Epoch), By: ev.By}
		if ev.Epoch != 0 && ev.Epoch != m.plan.Epoch {
			p, _ = s.former(ev.Model, ev.Epoch)
			o.change, _ = s.change(now, m, s.revived(m, p), fmt.Sprintf("pinned to the plan of epoch %d", p.Epoch))
			o.change.Decision, o.change.By = RolledBack, ev.By
		}
		o.pin = &store.Pin{Past: p, By: ev.By, At: now}
	case Unpin:
		m = s.model(ev.Model)
		if s.pinned(ev.Model) == nil {
			return
		}
		o.unpin, o.word = true, Change{Decision: Unpinned, Reason: "unpinned", By: ev.By}
	case Rollback:
		m = s.model(ev.Model)
		p, _ := s.former(ev.Model, ev.To)
		o.change, _ = s.change(now, m, s.revived(m, p), fmt.Sprintf("rolled back to the plan of epoch %d", p.Epoch))
		o.change.Decision, o.change.By = RolledBack, ev.By
		if ev.Keep {
			o.pin = &store.Pin{Past: p, By: ev.By, At: now}
		}
		if m.decider.machine != nil {
			m.decider.machine.HoldOff(now.Sub(s.zero).Seconds())
		}
	}
	o.word.Time, o.word.Model, o.word.Epoch = now, m.Name, m.plan.Epoch
	m.order, s.unsaved, s.ordered = o, true, true
}

// pins lists the pins to store: those that are, and what is ordered. epoch is
// that of the plans that change.
func (s *State) pins() []store.Pin {
	list := slices.Clone(s.object.Pins)
	for _, m := range s.models {
		if m.order == nil || m.order.pin == nil && !m.order.unpin {
			continue
		}
		list = slices.DeleteFunc(list, func(p store.Pin) bool { return p.Model == m.Name })
		if m.order.pin != nil {
			list = append(list, *m.order.pin)
		}
	}
	return list
}

// repinned is what a pinned model needs to have its pinned boundaries again,
// which a repair may have merged while replicas were missing.
func (s *State) repinned(now time.Time, m *model, pin *store.Pin) (Change, bool) {
	m.planner = fmt.Sprintf("pinned to the plan of epoch %d", pin.Epoch)
	if pin.By != "" {
		m.planner += " by " + pin.By
	}
	if sameCuts(pin.Past, m.plan) {
		return Change{}, false
	}
	next := s.revived(m, pin.Past)
	if !sameCuts(pin.Past, next) {
		m.planner += ", which needs more ready replicas"
		return Change{}, false
	}
	c, ok := s.change(now, m, next, fmt.Sprintf("back to the pinned plan of epoch %d", pin.Epoch))
	c.Decision = Repaired
	return c, ok
}

// resume makes the machine of each model that has an order, or of all, hold off
// as is stored.
func (s *State) resume(all bool) {
	for _, m := range s.models {
		if m.decider.machine == nil || !all && m.order == nil {
			continue
		}
		until, length := 0.0, 0.0
		for _, h := range s.object.Holds {
			if h.Model == m.Name {
				until, length = h.Until.Sub(s.zero).Seconds(), h.For.Seconds()
			}
		}
		m.decider.machine.RestoreHoldOff(until, length)
	}
}

// holds lists what the machines hold off, to be stored. A control plane that
// does not plan knows of its own orders only.
func (s *State) holds() []store.Hold {
	var list []store.Hold
	for _, m := range s.models {
		if m.decider.machine == nil {
			continue
		}
		if until, length := m.decider.machine.HoldOffState(); length > 0 {
			list = append(list, store.Hold{
				Model: m.Name, Until: s.zero.Add(seconds(until)).UTC().Round(time.Second), For: seconds(length),
			})
		}
	}
	return list
}

func seconds(x float64) time.Duration { return time.Duration(x * float64(time.Second)) }
