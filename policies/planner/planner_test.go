package planner

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/testkit/plantest"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/policies/partition"
)

// fixed proposes one partition, and prices all others at 100.
type fixed struct{ proposed policies.Partition }

func (f fixed) Partition(policies.Workload) (policies.Partition, error) { return f.proposed, nil }
func (f fixed) Price(policies.Workload, []policies.Tokens, []int) (policies.Partition, error) {
	return policies.Partition{Cost: 100, OneStage: 100}, nil
}

// testPlanner is a Planner with the view of a fleet that does not change by itself.
type testPlanner struct {
	*Planner
	view *View
}

// newPlanner returns a planner with ready replicas of model m, under a plan.
func newPlanner(t *testing.T, cfg Config, plan string, ids ...policies.ReplicaID) testPlanner {
	t.Helper()
	cfg.Model, cfg.Context, cfg.Edges = "m", 1000, []policies.Tokens{0, 100}
	if cfg.Speed == 0 {
		cfg.Speed = 1
	}
	cfg.Period = 10 * policies.Second
	p := testPlanner{testkit.Must(New(cfg)), &View{Grace: 60 * policies.Second, HalfLife: 60 * policies.Second}}
	for _, id := range ids {
		r := policies.Replica{ID: id, Model: "m", Capacity: policies.Capacity{KV: 1000, Batch: 8}}
		p.view.Replicas = append(p.view.Replicas, ReplicaView{Replica: r, Stage: -1, Ready: true, Seen: 5000, Reported: true})
	}
	if plan != "" {
		p.setPlan(plantest.Parse(plan))
	}
	return p
}

// setPlan puts a plan in force.
func (p testPlanner) setPlan(plan policies.Plan) {
	for i := range p.view.Replicas {
		p.view.Replicas[i].Stage = plan.StageOfReplica(p.view.Replicas[i].ID)
	}
	p.SetPlan(p.view, plan)
}

// change alters a replica, or removes it from the view if alter returns false.
func (p testPlanner) change(changes []change) {
	for _, c := range changes {
		if !c.alter(p.view.Get(c.id)) {
			list := slices.Clone(p.view.Replicas)
			p.view.Reset()
			p.view.Replicas = slices.DeleteFunc(list, func(r ReplicaView) bool { return r.ID == c.id })
		}
	}
}

// TestGain checks what the history says about a better plan: its gain is that of the
// planner's costs with the moved replica's prefill, at any speed.
func TestGain(t *testing.T) {
	for _, speed := range []float64{1, 4} {
		better := fixed{policies.Partition{Cuts: []policies.Tokens{100}, Counts: []int{1, 3}, Cost: 70, OneStage: 100}}
		p := newPlanner(t, Config{Speed: speed, Policy: Policy{planner: better}}, "a b | c d", "a", "b", "c", "d")
		r := p.Replan(0, p.view, nil)
		if r.Change == nil || r.Change.Decision != Adopted || len(r.Change.Stages[0].Replicas) != 1 {
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

// TestReasons checks that a plan has reasons from the first period on, under the flow of that period,
// and that those of another plan replace them.
func TestReasons(t *testing.T) {
	p := newPlanner(t, Config{Speed: 1, Seen: 1e6, Policy: Policy{planner: byStages{}}}, "a b | c d", "a", "b", "c", "d")
	p.view.Replicas[0].Flow = policies.NewFlow(p.cfg.Edges)
	p.view.Replicas[0].Flow.Arrivals[1], p.view.Replicas[0].Flow.Tokens[0] = 3, 7
	if p.Reasons() != nil {
		t.Errorf("before the first period: %+v", p.Reasons())
	}
	p.Replan(0, p.view, nil)
	want := []partition.StageReason{{Tokens: 1, Neighbour: 1, Rise: -0.5}, {Requests: 1, Neighbour: 0, Rise: -0.5}}
	if got := p.Reasons(); !slices.Equal(got, want) {
		t.Errorf("two stages: %+v, want %+v", got, want)
	}
	p.setPlan(plantest.Parse("a b c d"))
	want = []partition.StageReason{{Requests: 1, Tokens: 1, Neighbour: -1}}
	if got := p.Reasons(); !slices.Equal(got, want) {
		t.Errorf("one stage: %+v, want %+v", got, want)
	}
	p.setPlan(plantest.Parse("a | b | c d")) // which is over its limits
	if got := p.Reasons(); got != nil {
		t.Errorf("three stages: %+v", got)
	}
	plain := newPlanner(t, Config{Speed: 1}, "a b", "a", "b")
	if plain.Replan(0, plain.view, nil); plain.Reasons() != nil {
		t.Errorf("without planning: %+v", plain.Reasons())
	}
}

// byStages prices a division by its number of stages, of which three are too many.
type byStages struct{ fixed }

func (byStages) Price(_ policies.Workload, _ []policies.Tokens, counts []int) (policies.Partition, error) {
	if len(counts) > 2 {
		return policies.Partition{Cost: math.Inf(1)}, policies.ErrInfeasible
	}
	return policies.Partition{Cost: float64(len(counts)), OneStage: 1}, nil
}

// TestEarlyTick checks that a tick a little before the end of a period begins the next
// one, and one in its middle does not.
func TestEarlyTick(t *testing.T) {
	p := newPlanner(t, Config{Policy: Policy{planner: fixed{policies.Partition{Counts: []int{2}, Cost: 100, OneStage: 100}}}}, "a b", "a", "b")
	for _, c := range []struct {
		at      policies.Micros
		decides bool
	}{{0, true}, {5 * policies.Second, false}, {9500 * policies.Millisecond, true}} {
		if r := p.Replan(c.at, p.view, nil); r.Entry != nil != c.decides {
			t.Errorf("after %v µs: %+v, want a decision: %v", c.at, r, c.decides)
		}
	}
}

// TestHoldOff checks that an operator's rollbacks delay new plans by a minute, doubled up
// to 16, divided by the speed.
func TestHoldOff(t *testing.T) {
	for _, speed := range []float64{1, 4} {
		p := newPlanner(t, Config{Speed: speed, Policy: Policy{planner: fixed{}}}, "a", "a")
		if _, _, ok := p.Hold(); ok {
			t.Error("there is a hold-off at the start")
		}
		for _, minutes := range []float64{1, 2, 4, 8, 16, 16} {
			p.HoldOff(100)
			want := policies.Micros(minutes * float64(60*policies.Second) / speed)
			if until, length, ok := p.Hold(); !ok || length != want || until != 100+want {
				t.Errorf("speed %v: held until %v for %v, want %v", speed, until, length, want)
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
	if got, want := p.workloadOf(p.view, list).Capacity, (policies.Capacity{KV: 10, Batch: 7, TransferRate: 2}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestTransferOfTwo checks that the distance of two replicas counts before they have
// stages, and that one alone has the assumed cost.
func TestTransferOfTwo(t *testing.T) {
	assumed := policies.Transfer{Base: 1, PerToken: 1}
	p := newPlanner(t, Config{TokenBytes: 1e6, Transfer: assumed, Links: links.Rates{SameHost: 1e9, BetweenHosts: 1e9}}, "", "a", "b")
	list := []policies.Replica{{ID: "a"}, {ID: "b"}}
	if got := p.transfer(p.view, list[:1]); got != assumed {
		t.Errorf("one replica: %+v, want %+v", got, assumed)
	}
	if got := p.transfer(p.view, list); math.Abs(got.PerToken-1e-3) > 1e-4 {
		t.Errorf("two replicas: %v s per token, want 1 MB at 1 GB/s", got.PerToken)
	}
}

// TestMeasurements checks that a new plan, and a new leader, start from no measurement,
// and that idle stages have none.
func TestMeasurements(t *testing.T) {
	p := newPlanner(t, Config{}, "a | b", "a", "b")
	p.view.Get("a").Load = policies.Load{Running: 2, Iteration: 0.05, Held: 70}
	for name, reset := range map[string]func(){
		"new plan": func() { p.setPlan(plantest.Parse("a | b")) }, "new leader": func() { p.TakeOver(0) },
	} {
		p.Tick(p.view)
		p.Tick(p.view)
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

// TestPrefillRanges checks which prefill replicas are divided among the prompts: the ready ones, by id, once there are
// prompts to divide, and by the prompts of the prefill replicas alone.
func TestPrefillRanges(t *testing.T) {
	p := newPlanner(t, Config{Cost: policies.Cost{D2: 1e-4}}, "a", "c", "a", "b")
	p.cfg.Edges = []policies.Tokens{0, 2000}
	flow := func(short, long float64) policies.Flow {
		return policies.Flow{Edges: p.cfg.Edges, Arrivals: []float64{short, long}, Tokens: make([]float64, 2), Reads: make([]float64, 2), Weight: make([]float64, 2), Crossings: make([]float64, 2),
			Prefill: []float64{1000 * short, 61_000 * long}, Prefill2: []float64{1e6 * short, 61_000 * 61_000 * long}}
	}
	divided := []policies.PrefillRange{{Replica: "b", High: 31_000}, {Replica: "c", Low: 31_000, High: policies.Unbounded}}
	for _, step := range []struct {
		name   string
		change func(r func(policies.ReplicaID) *ReplicaView)
		want   []policies.PrefillRange
	}{
		{"no prefill replica", func(r func(policies.ReplicaID) *ReplicaView) { r("a").Flow = flow(6, 0.1) }, nil},
		{"one", func(r func(policies.ReplicaID) *ReplicaView) { r("b").Prefill, r("b").Flow = true, flow(3, 0.05) }, nil},
		{"two", func(r func(policies.ReplicaID) *ReplicaView) { r("c").Prefill, r("c").Flow = true, flow(3, 0.05) }, divided},
		{"one is not ready", func(r func(policies.ReplicaID) *ReplicaView) { r("c").Ready = false }, nil},
		{"it is back", func(r func(policies.ReplicaID) *ReplicaView) { r("c").Ready = true }, divided},
		{"their prompts are alike", func(r func(policies.ReplicaID) *ReplicaView) { r("b").Flow, r("c").Flow = flow(3, 0), flow(3, 0) }, nil},
	} {
		step.change(p.view.Get)
		for range ticksPerDivision {
			p.Tick(p.view)
		}
		if got := p.PrefillRanges(); !slices.Equal(got, step.want) {
			t.Errorf("%s: %+v, want %+v", step.name, got, step.want)
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
		if r := p.Refine(p.view); r.Change != nil || r.Entry != nil {
			t.Errorf("without proposals: %+v", r)
		}
		if p.setPlan(plantest.Parse("a b c")); p.Boundary(0) != nil {
			t.Errorf("refined %v: one stage has a boundary", refined)
		}
	}
}

// TestSiteRules checks that the site's rules are asked about every plan but the first.
func TestSiteRules(t *testing.T) {
	deny := func(_, _ policies.Plan) error { return errors.New("denied") }
	for _, c := range []struct {
		plan string
		deny func(_, _ policies.Plan) error
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
	alter func(r *ReplicaView) (inView bool)
}

func unready(r *ReplicaView) bool  { r.Ready = false; return true }
func prefills(r *ReplicaView) bool { r.Prefill = true; return true }
func drains(r *ReplicaView) bool {
	r.Draining, r.DrainOrdered, r.Ready, r.Leaving = true, true, false, true
	return true
}
func leaves(r *ReplicaView) bool {
	r.Removed, r.Ready, r.Leaving = true, false, true
	return true
}

// otherModel is a replica that serves another model by now, so that the view lacks it.
func otherModel(*ReplicaView) bool { return false }

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
		"becomes a prefill replica": {"a | b c", []change{{"c", prefills}}, "a |100| b"},
		"first plan, one drained":   {"", []change{{"b", drains}}, "a c"},
		"first plan, all drained":   {"", []change{{"a", drains}, {"b", drains}, {"c", drains}}, "a"},
		"first plan, first left":    {"", []change{{"a", leaves}, {"b", drains}, {"c", drains}}, "b"},
		"first plan, other model":   {"", []change{{"a", otherModel}, {"b", drains}, {"c", drains}}, "b"},
		"stage lost its replica":    {"a c | b", []change{{"b", unready}}, "a |100| c b"},
		"leaves":                    {"a | b c", []change{{"c", leaves}}, "a |100| b"},
		"drained":                   {"a | b c", []change{{"c", drains}}, "a |100| b"},
		"only member is drained":    {"a", []change{{"a", drains}, {"b", leaves}, {"c", leaves}}, ""},
		"other model's left":        {"a | b", []change{{"c", otherModel}}, ""},
		"names an unknown one":      {"a | b c x", nil, "a |100| b c"},
		"names none of its own":     {"x | y", nil, "a b c"},
		"names only other models'":  {"x", []change{{"c", otherModel}}, "a b"},
		"unknown, no other members": {"a x", []change{{"a", drains}, {"b", drains}, {"c", drains}}, ""},
	} {
		p := newPlanner(t, Config{Policy: Policy{planner: fixed{}}}, c.plan, "a", "b", "c")
		p.change(c.changes)
		got := ""
		if change, _ := p.Repair(0, p.view); change != nil {
			got = plantest.Format(policies.Plan{Stages: change.Stages})
		}
		if got != c.want {
			t.Errorf("%s: repaired to %q, want %q", name, got, c.want)
		}
	}
}

// TestRevive checks who gets a stage of a former plan.
func TestRevive(t *testing.T) {
	former := policies.Partition{Cuts: []policies.Tokens{50}, Counts: []int{1, 2}}
	for name, c := range map[string]struct {
		changes []change
		want    string
	}{
		"all ready":         {nil, "a |50| b c d"},
		"first unready":     {[]change{{"a", unready}}, "b a |50| c d"},
		"last unready":      {[]change{{"d", unready}}, "a |50| b c d"},
		"left":              {[]change{{"d", leaves}}, "a |50| b c"},
		"unready, left":     {[]change{{"d", func(r *ReplicaView) bool { r.Removed = true; return unready(r) }}}, "a |50| b c"},
		"drained":           {[]change{{"d", drains}}, "a |50| b c"},
		"other model":       {[]change{{"d", otherModel}}, "a |50| b c"},
		"prefills":          {[]change{{"d", prefills}}, "a |50| b c"},
		"prefills, unready": {[]change{{"d", func(r *ReplicaView) bool { return prefills(r) && unready(r) }}}, "a |50| b c"},
		"none is ready":     {[]change{{"a", unready}, {"b", unready}, {"c", unready}, {"d", unready}}, "a b |100| c d"},
	} {
		p := newPlanner(t, Config{Policy: Policy{planner: fixed{}}}, "a b | c d", "a", "b", "c", "d")
		p.change(c.changes)
		if got := plantest.Format(p.Revive(p.view, former)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestPinned checks the return to a pinned plan.
func TestPinned(t *testing.T) {
	p := newPlanner(t, Config{Policy: Policy{planner: fixed{}}}, "a b", "a", "b")
	pin := &Pin{Epoch: 3, Former: policies.Partition{Cuts: []policies.Tokens{50}, Counts: []int{1, 1}}, By: "ann"}
	r := p.Replan(0, p.view, pin)
	if r.Change == nil || plantest.Format(policies.Plan{Stages: r.Change.Stages}) != "a |50| b" || r.Change.Decision != Repaired {
		t.Fatalf("%+v, want the pinned plan", r)
	}
	p.setPlan(policies.Plan{Model: "m", Epoch: 8, Stages: r.Change.Stages})
	if r = p.Replan(0, p.view, pin); !reflect.DeepEqual(r, Result{}) {
		t.Errorf("in force: %+v", r)
	}
	if want := "pinned to the plan of epoch 3 by ann"; p.Status() != want {
		t.Errorf("status %q, want %q", p.Status(), want)
	}
	p.setPlan(plantest.Parse("a b"))
	unready(p.view.Get("b"))
	if r = p.Replan(0, p.view, pin); r.Change != nil || p.Status() != "pinned to the plan of epoch 3 by ann, which needs more ready replicas" {
		t.Errorf("one is unready: %+v, %q", r.Change, p.Status())
	}
}
