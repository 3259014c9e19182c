package planner

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/xds/internal/planhistory"
	"github.com/cascadeinfer/cascade/xds/internal/plantest"
	"github.com/cascadeinfer/cascade/xds/internal/registry"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/store"
)

var start = time.Unix(1_700_000_000, 0)

// fixed proposes one partition, and prices all others at 100.
type fixed struct{ proposed policies.Partition }

func (f fixed) Partition(policies.Workload) (policies.Partition, error) { return f.proposed, nil }
func (f fixed) Price(policies.Workload, []policies.Tokens, []int) (policies.Partition, error) {
	return policies.Partition{Cost: 100, OneStage: 100}, nil
}

// newPlanner returns a planner with ready replicas of model m, under a plan.
func newPlanner(t *testing.T, cfg Config, plan string, ids ...policies.ReplicaID) *Planner {
	t.Helper()
	cfg.Model, cfg.Context, cfg.Edges = "m", 1000, []policies.Tokens{0, 100}
	if cfg.Speed == 0 {
		cfg.Speed = 1
	}
	cfg.Period = 10 * time.Second
	cfg.Registry = registry.New(registry.Config{Grace: time.Minute, HalfLife: time.Minute})
	var list []policies.Replica
	for _, id := range ids {
		list = append(list, policies.Replica{ID: id, Model: "m", Capacity: policies.Capacity{KV: 1000, Batch: 8}})
	}
	cfg.Registry.Configure(start, list)
	for _, r := range cfg.Registry.All() {
		r.HandleReport(start, &loadreport.Report{EngineReady: true, Flow: policies.Flow{Seen: 5000}}, true)
		cfg.Registry.Refresh(start, r)
	}
	p := testkit.Must(New(cfg))
	p.Start(start)
	if plan != "" {
		p.SetPlan(start, plantest.Parse(plan))
	}
	return p
}

// TestGain checks what the history says about a better plan: its gain is that of the
// planner's costs with the moved replica's prefill, at any speed.
func TestGain(t *testing.T) {
	for _, speed := range []float64{1, 4} {
		better := fixed{policies.Partition{Cuts: []policies.Tokens{100}, Counts: []int{1, 3}, Cost: 70, OneStage: 100}}
		p := newPlanner(t, Config{Speed: speed, Policy: Policy{planner: better}}, "a b | c d", "a", "b", "c", "d")
		r := p.Replan(start, nil)
		if r.Change == nil || r.Change.Decision != planhistory.Adopted || len(r.Change.Stages[0].Replicas) != 1 {
			t.Fatalf("speed %v: %+v, want the proposal", speed, r.Change)
		}
		// One of four replicas repeats 5 s of prefill in 60 s.
		if want := 1 - 0.7*(1+5.0/60/4); math.Abs(r.Change.Gain-want) > 1e-9 {
			t.Errorf("speed %v: gain %v, want %v", speed, r.Change.Gain, want)
		}
		if want := "better plan: predicted gain 29 %"; p.Status() != want {
			t.Errorf("status %q, want %q", p.Status(), want)
		}
	}
}

// TestEarlyTick checks that a tick a little before the end of a period begins the next
// one, and one in its middle does not.
func TestEarlyTick(t *testing.T) {
	p := newPlanner(t, Config{Policy: Policy{planner: fixed{policies.Partition{Counts: []int{2}, Cost: 100, OneStage: 100}}}}, "a b", "a", "b")
	for _, c := range []struct {
		at      time.Duration
		decides bool
	}{{0, true}, {5 * time.Second, false}, {9500 * time.Millisecond, true}} {
		if r := p.Replan(start.Add(c.at), nil); r.Entry != nil != c.decides {
			t.Errorf("after %v: %+v, want a decision: %v", c.at, r, c.decides)
		}
	}
}

// TestHoldOff checks that an operator's rollbacks delay new plans by a minute, doubled up
// to 16, divided by the speed.
func TestHoldOff(t *testing.T) {
	for _, speed := range []float64{1, 4} {
		p := newPlanner(t, Config{Speed: speed, Policy: Policy{planner: fixed{}}}, "a", "a")
		if _, ok := p.Hold(); ok {
			t.Error("there is a hold-off at the start")
		}
		for _, minutes := range []float64{1, 2, 4, 8, 16, 16} {
			p.HoldOff(start)
			want := time.Duration(minutes * float64(time.Minute) / speed)
			if hold, ok := p.Hold(); !ok || hold.For != want || !hold.Until.Equal(start.Add(want)) {
				t.Errorf("speed %v: held until %v for %v, want %v", speed, hold.Until, hold.For, want)
			}
		}
	}
}

func TestWorstIteration(t *testing.T) {
	for _, c := range []struct{ predicted, measured, want []float64 }{
		{nil, nil, []float64{0, 0}},
		{[]float64{1, 1}, []float64{0, 0}, []float64{0, 0}}, // nothing measured
		{[]float64{0, math.Inf(1)}, []float64{2, 2}, []float64{0, 0}},
		{[]float64{1, 4, 2, 0}, []float64{2, 4, 6, 9}, []float64{2, 6}},
		{[]float64{5, 5}, []float64{0, 1}, []float64{5, 1}},
	} {
		if p, m := worstIteration(c.predicted, c.measured); p != c.want[0] || m != c.want[1] {
			t.Errorf("%v predicted, %v measured: %v, %v, want %v", c.predicted, c.measured, p, m, c.want)
		}
	}
}

func TestDescribe(t *testing.T) {
	for _, c := range []struct {
		decision adoption.Decision
		want     string
	}{
		{adoption.Decision{Reason: adoption.SmallGain}, "gain too small"},
		{adoption.Decision{Reason: adoption.SmallGain, Gain: -0.056}, "gain too small: predicted gain -6 %"},
		{adoption.Decision{Reason: adoption.SmallGain, Gain: math.Inf(-1)}, "gain too small"},
		{adoption.Decision{Reason: adoption.InvalidWorkload, Err: errors.New("no edges")}, "invalid workload: no edges"},
	} {
		if got := describe(c.decision); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// TestSmallestCapacity checks that the planner counts on what every replica has.
func TestSmallestCapacity(t *testing.T) {
	var list []policies.Replica
	for _, c := range []policies.Capacity{{KV: 20, Batch: 8, TransferRate: 3}, {KV: 10, Batch: 9, TransferRate: 2}, {KV: 30, Batch: 7, TransferRate: 4}} {
		list = append(list, policies.Replica{Capacity: c})
	}
	p := newPlanner(t, Config{}, "")
	if got, want := p.workloadOf(list).Capacity, (policies.Capacity{KV: 10, Batch: 7, TransferRate: 2}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestTransferOfTwo checks that the distance of two replicas counts before they have
// stages, and that one alone has the assumed cost.
func TestTransferOfTwo(t *testing.T) {
	assumed := policies.Transfer{Base: 1, PerToken: 1}
	p := newPlanner(t, Config{TokenBytes: 1e6, Transfer: assumed, Links: links.Rates{SameHost: 1e9, BetweenHosts: 1e9}}, "", "a", "b")
	list := []policies.Replica{{ID: "a"}, {ID: "b"}}
	if got := p.transfer(list[:1]); got != assumed {
		t.Errorf("one replica: %+v, want %+v", got, assumed)
	}
	if got := p.transfer(list); math.Abs(got.PerToken-1e-3) > 1e-4 {
		t.Errorf("two replicas: %v s per token, want 1 MB at 1 GB/s", got.PerToken)
	}
}

// TestMeasurements checks that a new plan, and a new leader, start from no measurement,
// and that idle stages have none.
func TestMeasurements(t *testing.T) {
	p := newPlanner(t, Config{}, "a | b", "a", "b")
	p.cfg.Registry.Get("a").Report.Load = policies.Load{Running: 2, Iteration: 0.05, Held: 70}
	for name, reset := range map[string]func(){
		"new plan": func() { p.SetPlan(start, plantest.Parse("a | b")) }, "new leader": func() { p.TakeOver(start) },
	} {
		p.Tick(start)
		p.Tick(start)
		if got := p.iterations(); math.Abs(got[0]-0.05) > 1e-12 || got[1] != 0 {
			t.Errorf("iterations %v, want 0.05 and none", got)
		}
		if reset(); !slices.Equal(p.iterations(), []float64{0, 0}) {
			t.Errorf("%s: iterations %v are left", name, p.iterations())
		}
	}
	for stage, want := range map[int]float64{-1: -1, 0: 70, 1: 0, 2: -1} {
		if got, ok := p.MeanHeld(stage); ok != (want >= 0) || ok && got != want {
			t.Errorf("stage %d holds %v, %v, want %v", stage, got, ok, want)
		}
	}
}

// TestBoundaries checks that only stages that follow each other have a boundary, and
// only where boundaries are refined.
func TestBoundaries(t *testing.T) {
	for _, refined := range []bool{true, false} {
		p := newPlanner(t, Config{Refine: refined}, "a | b c", "a", "b", "c")
		if b := p.Boundary(0); (b != nil) != refined || refined && (b.At != 100 || b.Peers != 1 || b.Successors != 2) {
			t.Errorf("refined %v: boundary %+v", refined, b)
		}
		if r := p.Refine(start); r.Change != nil || r.Entry != nil {
			t.Errorf("without proposals: %+v", r)
		}
		if p.SetPlan(start, plantest.Parse("a b c")); p.Boundary(0) != nil {
			t.Errorf("refined %v: one stage has a boundary", refined)
		}
	}
}

// TestForgottenStages checks that replicas have no stage while there is no plan.
func TestForgottenStages(t *testing.T) {
	p := newPlanner(t, Config{}, "", "a")
	a := p.cfg.Registry.Get("a")
	a.Stage = 1
	if p.RecordStages(); a.Stage != -1 {
		t.Errorf("stage %d without a plan", a.Stage)
	}
}

// TestSiteRules checks that the site's rules are asked about every plan but the first.
func TestSiteRules(t *testing.T) {
	deny := func(policies.Plan, []policies.Stage) error { return errors.New("denied") }
	for _, c := range []struct {
		plan string
		deny func(policies.Plan, []policies.Stage) error
		want bool
	}{{"", deny, false}, {"a", deny, true}, {"a", nil, false}, {"", nil, false}} {
		p := newPlanner(t, Config{Check: c.deny}, c.plan, "a")
		if err := p.Check(nil); (err != nil) != c.want {
			t.Errorf("plan %q, rules %v: %v", c.plan, c.deny != nil, err)
		}
	}
}

// change alters a replica after the plan is in force.
type change struct {
	id    policies.ReplicaID
	alter func(r *registry.Replica)
}

func unready(r *registry.Replica) { r.Health = resources.Unhealthy }
func drains(r *registry.Replica)  { r.Draining, r.Health = true, resources.Draining }
func leaves(r *registry.Replica)  { r.Removed, r.Health = true, resources.Draining }

// otherModel says that the replica serves another model, and is in a stage of it.
func otherModel(then func(*registry.Replica)) func(*registry.Replica) {
	return func(r *registry.Replica) { r.Model = "n"; then(r) }
}

// TestRepair checks when the plan in force is repaired, and to what.
func TestRepair(t *testing.T) {
	for name, c := range map[string]struct {
		plan    string
		changes []change
		want    string // "" means no repair
	}{
		"all is well":               {"a | b", []change{{"c", unready}}, ""},
		"joins":                     {"a | b", nil, "a |100| b c"},
		"first plan":                {"", nil, "a b c"},
		"first plan, one drained":   {"", []change{{"b", drains}}, "a c"},
		"first plan, all drained":   {"", []change{{"a", drains}, {"b", drains}, {"c", drains}}, "a"},
		"first plan, first left":    {"", []change{{"a", leaves}, {"b", drains}, {"c", drains}}, "b"},
		"first plan, other model":   {"", []change{{"a", otherModel(drains)}, {"b", drains}, {"c", drains}}, "b"},
		"stage lost its replica":    {"a c | b", []change{{"b", unready}}, "a |100| c b"},
		"leaves":                    {"a | b c", []change{{"c", leaves}}, "a |100| b"},
		"drained":                   {"a | b c", []change{{"c", drains}}, "a |100| b"},
		"only member is drained":    {"a", []change{{"a", drains}, {"b", leaves}, {"c", leaves}}, ""},
		"other model's left":        {"a | b", []change{{"c", otherModel(func(r *registry.Replica) { leaves(r); r.Stage = 0 })}}, ""},
		"names an unknown one":      {"a | b c x", nil, "a |100| b c"},
		"names none of its own":     {"x | y", nil, "a b c"},
		"names only other models'":  {"x", []change{{"c", otherModel(func(r *registry.Replica) { r.Stage = 0 })}}, "a b"},
		"unknown, no other members": {"a x", []change{{"a", drains}, {"b", drains}, {"c", drains}}, ""},
	} {
		p := newPlanner(t, Config{Policy: Policy{planner: fixed{}}}, c.plan, "a", "b", "c")
		for _, ch := range c.changes {
			ch.alter(p.cfg.Registry.Get(ch.id))
		}
		got := ""
		if change, _ := p.Repair(start); change != nil {
			got = plantest.Format(policies.Plan{Stages: change.Stages})
		}
		if got != c.want {
			t.Errorf("%s: repaired to %q, want %q", name, got, c.want)
		}
	}
}

// TestRevive checks who gets a stage of a former plan.
func TestRevive(t *testing.T) {
	former := store.FormerPlan{Model: "m", Epoch: 3, Cuts: []policies.Tokens{50}, Counts: []int{1, 2}}
	for name, c := range map[string]struct {
		changes []change
		want    string
	}{
		"all ready":     {nil, "a |50| b c d"},
		"first unready": {[]change{{"a", unready}}, "b a |50| c d"},
		"last unready":  {[]change{{"d", unready}}, "a |50| b c d"},
		"left":          {[]change{{"d", leaves}}, "a |50| b c"},
		"unready, left": {[]change{{"d", func(r *registry.Replica) { unready(r); r.Removed = true }}}, "a |50| b c"},
		"drained":       {[]change{{"d", drains}}, "a |50| b c"},
		"other model":   {[]change{{"d", otherModel(unready)}}, "a |50| b c"},
		"none is ready": {[]change{{"a", unready}, {"b", unready}, {"c", unready}, {"d", unready}}, "a b |100| c d"},
	} {
		p := newPlanner(t, Config{Policy: Policy{planner: fixed{}}}, "a b | c d", "a", "b", "c", "d")
		for _, ch := range c.changes {
			ch.alter(p.cfg.Registry.Get(ch.id))
		}
		if got := plantest.Format(p.Revive(former)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestPinned checks the return to a pinned plan.
func TestPinned(t *testing.T) {
	p := newPlanner(t, Config{Policy: Policy{planner: fixed{}}}, "a b", "a", "b")
	pin := &store.Pin{FormerPlan: store.FormerPlan{Model: "m", Epoch: 3, Cuts: []policies.Tokens{50}, Counts: []int{1, 1}}, By: "ann"}
	r := p.Replan(start, pin)
	if r.Change == nil || plantest.Format(policies.Plan{Stages: r.Change.Stages}) != "a |50| b" || r.Change.Decision != planhistory.Repaired {
		t.Fatalf("%+v, want the pinned plan", r)
	}
	p.SetPlan(start, policies.Plan{Model: "m", Epoch: 8, Stages: r.Change.Stages})
	if r = p.Replan(start, pin); !reflect.DeepEqual(r, Result{}) {
		t.Errorf("in force: %+v", r)
	}
	if want := "pinned to the plan of epoch 3 by ann"; p.Status() != want {
		t.Errorf("status %q, want %q", p.Status(), want)
	}
	p.SetPlan(start, plantest.Parse("a b"))
	unready(p.cfg.Registry.Get("b"))
	if r = p.Replan(start, pin); r.Change != nil || p.Status() != "pinned to the plan of epoch 3 by ann, which needs more ready replicas" {
		t.Errorf("one is unready: %+v, %q", r.Change, p.Status())
	}
}
