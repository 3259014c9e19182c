package fleet

import (
	"time"

	"github.com/cascadeinfer/cascade/policies/planner"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Planning is a step of one model's planner. It is made from what the State knew at its start. When it has run, it is
// dropped if that is out of date: if the model was pinned or unpinned, for the reasons that planner.Finish names, and
// if another control plane leads. Reports, health and replicas that have come or gone do not drop it.
type Planning struct {
	model  *model
	refine bool
	pin    *store.Pin // nil: none
	task   *planner.Task
	ran    bool
}

// Run executes the step, which may take seconds. It is called once.
func (p *Planning) Run() { p.task.Run() }

// startPlanning starts the planning that is due after an event; nil: none is. A first plan comes before the plans of
// a period, and these before refined boundaries, which then come next. Of the models whose period is due, the one that was
// planned longest ago comes first, and so it is with boundaries: each has its turn, however long plannings take.
func (s *State) startPlanning(now time.Time, ev Event) *Planning {
	_, tick := ev.(Tick)
	_, ran := ev.(Planned)
	_, configured := ev.(Replicas)
	if !tick && !ran && !configured {
		return nil
	}
	if s.planning != nil || s.proposal != nil || !s.registry.Configured() || now.Before(s.retryAt) || !s.leads(now) {
		return nil
	}
	t := s.micros(now)
	var period, refinement *Planning
	for _, m := range s.models {
		p := Planning{model: m, pin: fleetstate.PinOf(s.object, m.Name)}
		switch {
		case m.planOrder != nil:
			continue
		case s.needsRepair && now.Sub(m.askedAt) >= retryDelay && m.planner.RepairsSlowly(s.registry.View(now, m.Name)):
			m.askedAt = now
			return s.start(now, &p, func(p *planner.Planner, v *planner.View) planner.Result {
				c, _ := p.Repair(t, v)
				return planner.Result{Change: c}
			})
		case configured:
			continue
		}
		if m.planner.PeriodDue(t) && (period == nil || m.periodAt.Before(period.model.periodAt)) {
			period = &p
		}
		if p.pin == nil && s.refineDue(now, m) && (refinement == nil || m.askedAt.Before(refinement.model.askedAt)) {
			refinement = &Planning{model: m, refine: true}
		}
	}
	switch {
	case refinement != nil && (period == nil || s.refineNext):
		s.refineNext, refinement.model.askedAt = false, now
		return s.start(now, refinement, func(p *planner.Planner, v *planner.View) planner.Result { return p.Refine(v) })
	case period != nil:
		s.refineNext, period.model.periodAt = refinement != nil, now
		s.updateRatio(now, period.model)
		pin := planPin(period.pin)
		return s.start(now, period, func(p *planner.Planner, v *planner.View) planner.Result { return p.Replan(t, v, pin) })
	}
	return nil
}

// refineDue reports whether a model's boundaries may move to where its replicas propose them. Those of all models
// together change at most once in an interval, and each is asked about at most once in a tick.
func (s *State) refineDue(now time.Time, m *model) bool {
	due := now.Sub(s.refinedAt) >= duration(planner.RefineInterval) && m.askedAt.Before(s.tickedAt)
	return due && s.rules.refines() && len(m.planner.Plan().Stages) > 1
}

func (s *State) start(now time.Time, p *Planning, step func(*planner.Planner, *planner.View) planner.Result) *Planning {
	p.task = p.model.planner.Start(s.registry.View(now, p.model.Name), step)
	s.planning = p
	return p
}

// planned returns the change of a model's plan that its planning has resulted in; nil: none.
func (s *State) planned(now time.Time, m *model) *fleetstate.Change {
	p := s.planning
	if p == nil || !p.ran || p.model != m {
		return nil
	}
	s.planning = nil
	r := m.planner.Finish(s.registry.View(now, m.Name), p.task)
	if pin := fleetstate.PinOf(s.object, m.Name); (pin == nil) != (p.pin == nil) || pin != nil && pin.Epoch != p.pin.Epoch {
		return nil
	}
	if r.Entry != nil {
		// It is stored with the next object.
		s.history = fleetstate.Append(s.history, *s.sign(now, *r.Entry))
	}
	if p.refine && (r.Entry != nil || r.Change != nil) {
		s.refinedAt = now
	}
	if r.Change == nil {
		return nil
	}
	return s.sign(now, *r.Change)
}
