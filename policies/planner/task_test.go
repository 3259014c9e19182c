package planner

import (
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit/plantest"
	"github.com/cascadeinfer/cascade/policies"
)

// TestTask checks which changes during a task leave its result in force: replicas that come and go, whose places it
// adapts, and not another plan's boundaries, a hold-off or a new leader's start.
func TestTask(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(p testPlanner)
		want      string // the plan; "": none
	}{
		"nothing":         {func(testPlanner) {}, "a b | c d"},
		"a tick":          {func(p testPlanner) { p.Tick(p.view) }, "a b | c d"},
		"a replica left":  {func(p testPlanner) { p.change([]change{{"b", func(*ReplicaView) bool { return false }}}) }, "a | c d"},
		"members":         {func(p testPlanner) { p.setPlan(plantest.Parse("a b c")) }, "a b | c d"},
		"boundaries":      {func(p testPlanner) { p.setPlan(plantest.Parse("a | b c d")) }, ""},
		"a hold-off":      {func(p testPlanner) { p.HoldOff(0) }, ""},
		"a stored hold":   {func(p testPlanner) { p.RestoreHold(policies.Second, policies.Second) }, ""},
		"the same hold":   {func(p testPlanner) { p.RestoreHold(0, 0) }, "a b | c d"},
		"another leader":  {func(p testPlanner) { p.TakeOver(0) }, ""},
		"another network": {func(p testPlanner) { p.ResetDistances() }, "a b | c d"},
	} {
		better := fixed{policies.Partition{Cuts: []policies.Tokens{100}, Counts: []int{2, 2}, Cost: 70, OneStage: 100}}
		p := newPlanner(t, Config{Policy: Policy{planner: better}, TokenBytes: 1}, "a b c d", "a", "b", "c", "d")
		task := p.Start(p.view, func(p *Planner, v *View) Result { return p.Replan(0, v, nil) })
		c.meanwhile(p)
		task.Run()
		got := ""
		if r := p.Finish(p.view, task); r.Change != nil {
			got = plantest.Format(policies.Plan{Stages: r.Change.Stages})
		}
		if want := c.want; want != "" && got != plantest.Format(plantest.Parse(want)) || want == "" && got != "" {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		if p.PeriodDue(0) {
			t.Errorf("%s: the period is still due", name)
		}
	}
}

// TestTaskKeepsMeasurements checks that no tick is lost while a task runs, and that what it has used is not used again.
func TestTaskKeepsMeasurements(t *testing.T) {
	paper := Policy{planner: fixed{policies.Partition{Counts: []int{2}, Cost: 1, OneStage: 1}}, paper: true}
	p := newPlanner(t, Config{Policy: paper, TokenBytes: 1}, "a b", "a", "b")
	for i := range p.view.Replicas {
		r := &p.view.Replicas[i]
		r.Load.Iteration, r.Load.Running = 0.5, 2
	}
	p.Tick(p.view)
	one, seen := p.window[0], p.period.Batches(p.cfg.Edges, 1)
	if one.Running == 0 || len(seen) == 0 {
		t.Fatalf("a tick measures %+v, %v", one, seen)
	}
	task := p.Start(p.view, func(*Planner, *View) Result { return Result{} })
	p.Tick(p.view)
	task.Run()
	p.Finish(p.view, task)
	if got := p.window[0]; got.Running != 2*one.Running || got.Tokens != 2*one.Tokens {
		t.Errorf("after two ticks %+v, after one %+v", got, one)
	}
	task = p.Start(p.view, func(p *Planner, _ *View) Result {
		p.resetMeasurements()
		p.period = Period{}
		return Result{}
	})
	task.Run()
	p.Tick(p.view)
	p.Finish(p.view, task)
	if got := p.window[0]; got != one {
		t.Errorf("a task has used the measurements; a tick later %+v, want %+v", got, one)
	}
}
