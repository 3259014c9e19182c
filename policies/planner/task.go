package planner

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

// Task is one step of a Planner that may take seconds, because it asks modules or the site's rules. It works
// on copies of the Planner and its View, so that Run may run on another goroutine than the Planner's owner.
type Task struct {
	planner   Planner
	view      View
	members   []Member
	distances *links.CostMap // of the owner's planner
	step      func(*Planner, *View) Result
	result    Result
}

// Start returns a task that calls Replan, Refine or another method of the planner in step.
func (p *Planner) Start(v *View, step func(*Planner, *View) Result) *Task {
	t := &Task{planner: *p, step: step, members: listMembers(v)}
	t.view = View{Replicas: slices.Clone(v.Replicas), Grace: v.Grace, HalfLife: v.HalfLife}
	// What is measured from now on is added when the task has ended.
	p.window, p.period = make([]Pace, len(p.window)), Period{}
	if p.machine != nil {
		machine := *p.machine
		t.planner.machine = &machine
	}
	if p.near(v); p.distances != nil {
		t.distances, t.planner.distances = p.distances, p.distances.Clone()
	}
	return t
}

// Run executes the task. It is called once.
func (t *Task) Run() { t.result = t.step(&t.planner, &t.view) }

// Finish applies a task that has run, and returns its result. A task is out of date if, since Start, the boundaries
// of the plan in force have changed, new plans were held off, or the control plane became the leader again: then only
// the time of the next period is applied. If replicas have come or gone, the result gets the present ones, as a repair
// would.
func (p *Planner) Finish(v *View, t *Task) Result {
	p.begun, p.nextAt = p.begun || t.planner.begun, max(p.nextAt, t.planner.nextAt)
	if p.distances == t.distances {
		p.distances = t.planner.distances // with what was computed
	}
	if p.changes != t.planner.changes {
		return Result{}
	}
	p.machine, p.initial = t.planner.machine, t.planner.initial
	p.status, p.last, p.reasons = t.planner.status, t.planner.last, t.planner.reasons
	if p.plan.Epoch == t.planner.plan.Epoch {
		for i, pace := range t.planner.window {
			p.window[i].Running += pace.Running
			p.window[i].Tokens += pace.Tokens
		}
	}
	p.period.add(&t.planner.period)
	if p.plan.Epoch != t.planner.plan.Epoch {
		p.explain()
	}
	r := t.result
	if members := listMembers(v); r.Change != nil && !slices.EqualFunc(members, t.members, sameMember) {
		fitted := RepairPlan(policies.Plan{Model: p.cfg.Model, Stages: r.Change.Stages}, members)
		if p.Propose(fitted, r.Change.Reason) == nil {
			return Result{Entry: r.Entry}
		}
		r.Change.Stages = fitted.Stages
	}
	return r
}

func sameMember(a, b Member) bool { return a.ID == b.ID && a.Ready == b.Ready }

// RepairsSlowly reports whether Repair would ask the planner for a first plan, so that it belongs into a Task.
func (p *Planner) RepairsSlowly(v *View) bool { return p.hasHistory() && !p.keepsPlan(v) }
