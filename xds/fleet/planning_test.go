package fleet

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/policytest"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/store"
)

// slowPlanner is a module that takes as long as modules may.
type slowPlanner struct{ adoption.Planner }

func (p slowPlanner) Partition(w policies.Workload) (policies.Partition, error) {
	time.Sleep(time.Second)
	return p.Planner.Partition(w)
}

// slowRules returns the rules of three models of four replicas each, with modules and site's rules that take as long
// as they may, and the reports of the replicas.
func slowRules() (rules Rules, list []policies.Replica, reports []loadreport.Report) {
	rules = Rules{
		Name: "a", Shared: true,
		Wrap:  func(_ string, native adoption.Planner) adoption.Planner { return slowPlanner{native} },
		Check: func(_, _ policies.Plan) error { time.Sleep(2 * time.Second); return nil },
	}
	flow, _ := mix("skewed")
	for i, name := range []string{"m0", "m1", "m2"} {
		rules.Models = append(rules.Models, Model{
			Model: resources.Model{Name: name, Context: 32768}, Edges: policies.BucketEdges(32768, 4),
			QoE: policytest.H200QoE(), Cost: policies.Cost{D0: 0.008, D1: 5e-5, D2: 6e-5, D3: 1e-9, D4: 6e-8, Kappa: 4},
		})
		for j := range 4 {
			r := scenarioReplica(fmt.Sprint("r", 4*i+j))
			r.Model = name
			list = append(list, r)
			reports = append(reports, loadreport.Report{Replica: r.ID, Model: name, EngineReady: true, Flow: flow})
		}
	}
	rules.Models[2].History = policies.Workload{Flow: flow}
	return rules, list, reports
}

// TestSlowPlanners checks that reports are handled at once while three models are planned by modules that take a second
// each and checked by rules that take two: the control plane keeps its lease, no replica becomes unhealthy, and an
// operator's order that is checked does not stop the loop either.
func TestSlowPlanners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules, list, reports := slowRules()
		p, log := &healthPublisher{t: t}, new(testkit.Log)
		f, err := New(Config{
			Rules: rules, Replicas: list, Store: store.New(store.NewMemory()), Publisher: p,
			Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn})),
		})
		testkit.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { testkit.NoError(t, f.Run(ctx)) })
		for _, r := range reports {
			wg.Go(func() {
				for ctx.Err() == nil {
					r.Flow.Seen += 500
					began := time.Now()
					_, _ = f.HandleReport(ctx, r)
					if took := time.Since(began); took > 100*time.Millisecond {
						t.Errorf("%v: a report of %s took %v", began.Sub(start), r.Replica, took)
					}
					time.Sleep(time.Second / 2)
				}
			})
		}
		time.Sleep(time.Minute)
		for _, m := range f.Snapshot().Models {
			if len(m.Plan.Stages) < 2 {
				t.Errorf("%s: the plan has %d stages: %s", m.Name, len(m.Plan.Stages), m.Planner)
			}
		}
		testkit.NoError(t, f.Order(ctx, fleetstate.Rollback{Model: "m0"}))
		if plan := f.Snapshot().Models[0].Plan; len(plan.Stages) != 1 {
			t.Errorf("after a rollback: %d stages", len(plan.Stages))
		}
		cancel()
		wg.Wait()
		if text := log.String(); text != "" {
			t.Errorf("logged:\n%s", text)
		}
	})
}

// TestQueuedReports checks that replicas whose reports wait are not late: here the loop stands for longer than the grace.
func TestQueuedReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, list, reports := slowRules()
		rules := Rules{Models: []Model{{Model: resources.Model{Name: "m0", Context: 32768}, QoE: policytest.H200QoE(), Cost: policies.Cost{D0: 1}}}}
		late := 2 * (Rules{}).withDefaults().Grace
		p := &healthPublisher{t: t, blocked: late}
		f := testkit.Must(New(Config{Rules: rules, Replicas: list[:4], Store: store.New(store.NewMemory()), Publisher: p}))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { testkit.NoError(t, f.Run(ctx)) })
		for _, r := range reports[:4] {
			wg.Go(func() {
				for ctx.Err() == nil {
					_, _ = f.HandleReport(ctx, r)
					time.Sleep(time.Second)
				}
			})
		}
		time.Sleep(late + time.Second)
		cancel()
		wg.Wait()
	})
}

// TestManyReportsAtOnce checks that replicas which become ready at the same moment are published together: for each
// snapshot, a publisher that takes as long as the snapshot of a large fleet would stop the loop.
func TestManyReportsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, slow = 64, 100 * time.Millisecond
		rules := Rules{Models: []Model{{Model: resources.Model{Name: "m", Context: 32768}, QoE: policytest.H200QoE(), Cost: policies.Cost{D0: 1}}}}
		var list []policies.Replica
		for i := range n {
			list = append(list, scenarioReplica(fmt.Sprint("r", i)))
		}
		p := &slowPublisher{}
		f := testkit.Must(New(Config{Rules: rules, Replicas: list, Store: store.New(store.NewMemory()), Publisher: p}))
		ctx, cancel := context.WithCancel(t.Context())
		var loop, reporters sync.WaitGroup
		loop.Go(func() { testkit.NoError(t, f.Run(ctx)) })
		time.Sleep(2 * rules.withDefaults().Grace) // none has reported
		p.delay.Store(int64(slow))
		began := time.Now()
		for _, r := range list {
			reporters.Go(func() {
				_, err := f.HandleReport(ctx, loadreport.Report{Replica: r.ID, Model: "m", EngineReady: true})
				testkit.NoError(t, err)
			})
		}
		reporters.Wait()
		if took := time.Since(began); took > n/2*slow {
			t.Errorf("%d reports took %v", n, took)
		}
		time.Sleep(time.Second)
		for _, r := range f.Snapshot().Models[0].Replicas {
			if r.Health != resources.Healthy {
				t.Errorf("%s is %v: %s", r.ID, r.Health, r.HealthReason)
			}
		}
		cancel()
		loop.Wait()
	})
}

// slowPublisher takes a while for each snapshot.
type slowPublisher struct{ delay atomic.Int64 }

func (p *slowPublisher) Publish(*Snapshot) { time.Sleep(time.Duration(p.delay.Load())) }

// healthPublisher requires that all replicas are healthy. Its first call blocks for a time.
type healthPublisher struct {
	t       *testing.T
	blocked time.Duration
}

func (p *healthPublisher) Publish(s *Snapshot) {
	time.Sleep(p.blocked)
	p.blocked = 0
	for _, m := range s.Models {
		for _, r := range m.Replicas {
			if r.Health != resources.Healthy {
				p.t.Errorf("%s is published as %v: %s", r.ID, r.Health, r.HealthReason)
			}
		}
	}
}

// TestPinDuringPlanning checks that a plan which was being made when an operator pinned the model does not replace the
// pinned one.
func TestPinDuringPlanning(t *testing.T) {
	rules, list, reports := slowRules()
	rules.Shared, rules.Wrap, rules.Check, rules.Models, reports = false, nil, nil, rules.Models[:1], reports[:4]
	s := testkit.Must(NewState(rules))
	settleState(s, start, Replicas{list[:4]})
	report := func(now time.Time) {
		for _, r := range reports {
			r.Flow.Seen = 5000
			settleState(s, now, Reported{r})
		}
	}
	report(start)
	now := start.Add(time.Second)
	planning := s.Step(now, Tick{}).Plan
	planning.Run()
	settleState(s, now, Ordered{Order: fleetstate.Pin{Model: "m0"}})
	if e := s.Step(now, Planned{}); e.Propose != nil {
		t.Errorf("a pinned model gets another plan: %+v", e.Propose.Changes)
	}
	settleState(s, now, Ordered{Order: fleetstate.Unpin{Model: "m0"}})
	now = now.Add(rules.withDefaults().Period)
	report(now)
	settleState(s, now, Tick{})
	if plan := s.models[0].planner.Plan(); len(plan.Stages) < 2 {
		t.Errorf("after the pin: %d stages: %s", len(plan.Stages), s.models[0].planner.Status())
	}
}

// TestPlanningsTakeTurns checks that models are planned in turn although each planning takes a whole period.
func TestPlanningsTakeTurns(t *testing.T) {
	rules, list, reports := slowRules()
	rules.Shared, rules.Wrap, rules.Check = false, nil, nil
	s := testkit.Must(NewState(rules))
	settleState(s, start, Replicas{list})
	for _, r := range reports {
		settleState(s, start, Reported{r})
	}
	planned := make(map[string]int)
	for now, i := start, 0; i < 9; i++ {
		now = now.Add(time.Second)
		for e := s.Step(now, Tick{}); e.Propose != nil || e.Plan != nil; e = s.Step(now, carryOut(e)) {
			if e.Plan == nil {
				continue
			}
			now = now.Add(rules.withDefaults().Period)
			if planned[e.Plan.model.Name]++; planned[e.Plan.model.Name] > 2 {
				t.Fatalf("one model is planned again and again: %v", planned)
			}
			if len(planned) == len(rules.Models) {
				return
			}
		}
	}
	t.Errorf("planned: %v", planned)
}

// TestBoundariesTakeTurns checks that boundaries are refined although each planning takes a whole period, so that one of the
// period is always due.
func TestBoundariesTakeTurns(t *testing.T) {
	s, refined := staged(t), 0
	var e Effects
	now := start
	for range 9 {
		now = now.Add(s.rules.Period)
		tick := s.Step(now, Tick{}) // while the planning runs
		switch {
		case e.Plan == nil:
			e = tick
			continue
		case e.Plan.refine:
			refined++
		}
		e = s.Step(now, carryOut(e))
	}
	if refined != 4 {
		t.Errorf("of 8 plannings %d were of boundaries, want 4", refined)
	}
}
