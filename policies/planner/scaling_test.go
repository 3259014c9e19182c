package planner

import (
	"fmt"
	"math"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/policytest"
)

// TestScaleSample checks which replicas count as what.
func TestScaleSample(t *testing.T) {
	p := newPlanner(t, Config{Cost: policytest.H200Cost()}, "", "a", "b", "c", "d", "e", "f", "g", "h")
	for i := range p.view.Replicas {
		r := &p.view.Replicas[i]
		r.Load.Waiting, r.Load.Running, r.Refused = 1, 2, 10
		r.Flow = policies.NewFlow(p.cfg.Edges)
		r.Flow.Tokens[0], r.Flow.Prefill[0] = 1, 100
		switch r.ID {
		case "b":
			r.Ready, r.Age = false, 2*p.view.Grace // silent
		case "c":
			r.Restored = true // silent, as far as this process knows
		case "d":
			r.Ready, r.Reported = false, false // starts
		case "e":
			r.Ready, r.Leaving = false, true
		case "f":
			r.DrainOrdered = true
		case "g":
			r.Prefill = true
		case "h":
			r.Capacity.KV = 500
		}
	}
	s := p.ScaleSample(p.view)
	if s.Present != 5 || s.Silent != 2 || s.Reporting != 2 || s.Waiting != 7 || s.Running != 14 || s.Refused != 70 {
		t.Errorf("%+v", s)
	}
	if w := s.Workload; w.Capacity.KV != 500 || w.Capacity.Batch != 8 || w.Cost != policytest.H200Cost() {
		t.Errorf("workload %+v", w)
	}
	// Of the silent one some has faded, and what the prefill replica computes is no work of the stages.
	if f := s.Workload.Flow; !(f.Tokens[0] > 6 && f.Tokens[0] < 7) || !(f.Prefill[0] > 500 && f.Prefill[0] < 600) {
		t.Errorf("flow %+v", f)
	}
	p.view.Reset()
	if s := p.ScaleSample(p.view); s.Present != 0 || s.Workload.Flow.Edges != nil {
		t.Errorf("without replicas: %+v", s)
	}
}

// TestStageNeeds checks what the stages of a plan need: as many as one stage, or more.
func TestStageNeeds(t *testing.T) {
	p := newPlanner(t, Config{Cost: policies.Cost{D0: 0.01, D1: 0.001}}, "a b | c", "a", "b", "c")
	w := policies.Workload{Replicas: 1, Flow: policies.NewFlow(p.cfg.Edges), Cost: p.cfg.Cost, Capacity: policies.Capacity{KV: 1 << 40, Batch: 1 << 30}}
	w.Flow.Tokens = []float64{1500, 1750} // replicas' work of 1.5 and 1.75
	if got := fmt.Sprint(p.StageNeeds(w, 1)); got != "[{2 work 1.5} {2 work 1.75}]" {
		t.Error(got)
	}
	if got := fmt.Sprint(p.StageNeeds(w, 0.5)); got != "[{4 work 3} {4 work 3.5}]" {
		t.Error(got)
	}
	w.Limits.Iteration = 0.001
	if got := p.StageNeeds(w, 1); got != nil {
		t.Errorf("limits that no number keeps: %v", got)
	}
	if got := p.StageNeeds(policies.Workload{}, 1); got != nil {
		t.Errorf("nothing known: %v", got)
	}
}

// scaledFleet is a planner whose fleet follows the number of replicas that is recommended for it.
type scaledFleet struct {
	testPlanner
	scaler *Scaler
	unit   policies.Flow
	epoch  policies.Epoch
	plans  int
	stages map[int]bool // numbers of stages that plans had
}

// period lets a planning period pass at a load, and returns the recommendation.
func (f *scaledFleet) period(now policies.Micros, load float64) Recommendation {
	n := len(f.view.Replicas)
	for i := range f.view.Replicas {
		r := &f.view.Replicas[i]
		r.Flow = policies.NewFlow(f.cfg.Edges)
		from := f.unit.Columns()
		for c, column := range r.Flow.Columns() {
			for b := range column {
				column[b] = from[c][b] * load / float64(n)
			}
		}
	}
	f.adopt(f.Replan(now, f.view, nil).Change)
	return f.scaler.Step(now, f.ScaleSample(f.view))
}

// adopt puts a change of plan in force.
func (f *scaledFleet) adopt(c *Change) {
	if c == nil || c.Stages == nil {
		return
	}
	f.epoch++
	f.plans++
	f.stages[len(c.Stages)] = true
	f.setPlan(policies.Plan{Model: "m", Epoch: f.epoch, Stages: c.Stages})
}

// resize starts or stops replicas at once.
func (f *scaledFleet) resize(now policies.Micros, n int) {
	list := f.view.Replicas
	for len(list) < n {
		r := policies.Replica{ID: policies.ReplicaID(fmt.Sprint(len(list))), Model: "m", Capacity: policies.Capacity{KV: 400_000, Batch: 256}}
		list = append(list, ReplicaView{Replica: r, Stage: -1, Ready: true, Reported: true, Seen: 5000})
	}
	f.view.Reset()
	f.view.Replicas = list[:n]
	c, _ := f.Repair(now, f.view)
	f.adopt(c)
}

// TestScalingIgnoresPlans follows a load that rises and falls within two hours, with a planner that divides
// the fleet anew: the plans change often, and the number of replicas rises once and falls once.
func TestScalingIgnoresPlans(t *testing.T) {
	edges := policies.BucketEdges(32768, 1)
	w := policytest.ChatWorkload(edges, 1, 1, 4)
	f := scaledFleet{scaler: testkit.Must(NewScaler(ScalerConfig{})), unit: w.Flow, stages: map[int]bool{}}
	f.testPlanner = testPlanner{
		testkit.Must(New(Config{
			Model: "m", Context: 32768, Edges: edges, Cost: w.Cost, Transfer: w.Transfer, Limits: policies.Limits{Stages: policies.MaxStages, Pooling: 0.3},
			Policy: testkit.Must(PolicyNamed("")), Speed: 1, Period: DefaultPeriod, Seen: DefaultSeen, IterationRatio: DefaultIterationRatio, Grace: DefaultGrace,
		})),
		&View{Grace: DefaultGrace, HalfLife: DefaultHalfLife},
	}
	f.resize(0, 6)
	turns, rising, last := 0, true, 6
	for now := policies.Micros(0); now < 2*3600*policies.Second; now += DefaultPeriod {
		phase := float64(now) / float64(2*3600*policies.Second)
		load := 4 + 20*math.Sin(math.Pi*phase)
		got := f.period(now, load).Desired
		if got != last && (got > last) != rising {
			turns, rising = turns+1, !rising
		}
		if last = got; got != len(f.view.Replicas) {
			f.resize(now, got)
		}
		if one := f.scaler.Utilisation() * float64(got); load > one {
			t.Fatalf("%d replicas for a load of %.1f", got, load)
		}
	}
	t.Logf("%d plans, stages %v, %d turns, %d replicas at the end", f.plans, f.stages, turns, last)
	if turns != 1 {
		t.Errorf("the number turns %d times", turns)
	}
	if len(f.stages) < 2 {
		t.Errorf("all plans have as many stages: %v", f.stages)
	}
}
