package fleet

import (
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/xds/internal/plantest"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// pair is a planner that proposes two stages for every workload.
type pair struct {
	adoption.Planner
	asked *int
}

func (p pair) Partition(w policies.Workload) (policies.Partition, error) {
	*p.asked++
	return p.Price(w, []policies.Tokens{512}, []int{w.Replicas / 2, w.Replicas - w.Replicas/2})
}

// TestWrap checks that the wrapped planner of a model makes its plans.
func TestWrap(t *testing.T) {
	asked, names := 0, []string(nil)
	rules := Rules{
		Models: []Model{{Name: "m", Context: 32768, Edges: policies.BucketEdges(32768, 4), Cost: policies.Cost{D0: 0.008, D1: 5e-5, D2: 6e-5, D3: 1e-9, D4: 6e-8, Kappa: 4}}},
		Wrap: func(model string, native adoption.Planner) adoption.Planner {
			names = append(names, model)
			return pair{native, &asked}
		},
	}
	s, err := NewState(rules)
	if err != nil || len(names) != 1 || names[0] != "m" {
		t.Fatal(names, err)
	}
	var list []policies.Replica
	for _, id := range []string{"r0", "r1", "r2", "r3"} {
		list = append(list, scenarioReplica(id))
	}
	step := func(now time.Time, ev Event) {
		for e := s.Step(now, ev); e.Propose != nil; {
			e = s.Step(now, Stored{e.Propose.Object})
		}
	}
	step(start, Replicas{list})
	flow, snapshot := mix("skewed")
	flow.Seen = 1000
	for _, r := range list {
		step(start, Reported{loadreport.Report{Replica: r.ID, Model: "m", EngineReady: true, Flow: flow, Snapshot: snapshot}})
	}
	step(start.Add(time.Second), Tick{})
	if m := s.Snapshot(start).Models[0]; asked == 0 || plantest.Format(m.Plan) != "r0 r1 |512| r2 r3" {
		t.Errorf("asked %d times: %s (%s)", asked, plantest.Format(m.Plan), m.Planner)
	}
	rules.Policy, rules.Wrap = PolicyRoundRobin, func(string, adoption.Planner) adoption.Planner { panic("asked for one stage") }
	if _, err := NewState(rules); err != nil {
		t.Error(err)
	}
}
