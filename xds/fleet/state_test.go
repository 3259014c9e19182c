package fleet

import (
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/internal/plantest"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/store"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// testRules returns the rules of a fleet of one model m with buckets 0, 16, 32.
func testRules(policy string) Rules {
	return Rules{
		Models: []Model{{
			Name: "m", Context: 4096, Edges: []policies.Tokens{0, 16, 32},
			Cost: policies.Cost{D0: 0.01, D1: 1e-4, D2: 1e-5, D4: 1e-7},
		}},
		Policy: policy,
	}
}

func testReplica(id string) policies.Replica {
	return policies.Replica{
		ID: policies.ReplicaID(id), Model: "m", Address: "127.0.0.1:" + map[string]string{"r0": "1000", "r1": "1001", "r2": "1002", "r3": "1003"}[id],
		Capacity: policies.Capacity{KV: 100_000, Batch: 64},
	}
}

// testState returns a State with replicas r0 to r3 and its first plan in force.
func testState(t testing.TB, policy string) *State {
	t.Helper()
	return newState(t, testRules(policy))
}

// newState is like testState, with other rules.
func newState(t testing.TB, rules Rules) *State {
	t.Helper()
	s, err := NewState(rules)
	if err != nil {
		t.Fatal(err)
	}
	list := []policies.Replica{testReplica("r0"), testReplica("r1"), testReplica("r2"), testReplica("r3")}
	settleState(s, start, Replicas{list})
	return s
}

// settleState applies an event and stores proposals until there are none.
func settleState(s *State, now time.Time, ev Event) (published *Snapshot) {
	e := s.Step(now, ev)
	for e.Propose != nil {
		e = s.Step(now, Stored{e.Propose.Object})
	}
	return e.Publish
}

// TestModelsAreIndependent checks that a change of one model's plan keeps the plan of
// the other model, and that both share one epoch counter.
func TestModelsAreIndependent(t *testing.T) {
	rules := testRules(PolicyDefault)
	other := rules.Models[0]
	other.Name = "n"
	rules.Models = append(rules.Models, other)
	s, err := NewState(rules)
	if err != nil {
		t.Fatal(err)
	}
	n := testReplica("r2")
	n.Model = "n"
	settleState(s, start, Replicas{[]policies.Replica{testReplica("r0"), testReplica("r1"), n}})
	one := s.Snapshot(start)
	if one.Epoch != 1 || one.Models[0].Plan.Epoch != 1 || one.Models[1].Plan.Epoch != 1 || plantest.Format(one.Models[1].Plan) != "r2" {
		t.Fatalf("%+v", one)
	}
	published := settleState(s, start, Replicas{[]policies.Replica{testReplica("r0"), n}})
	if published == nil || published.Epoch != 2 || published.Models[0].Plan.Epoch != 2 || published.Models[1].Plan.Epoch != 1 {
		t.Errorf("%+v", published)
	}
	if v := published.View(resources.Settings{}); len(v.Models) != 2 || len(v.Plans) != 2 || len(v.Endpoints) != 2 {
		t.Errorf("view %+v", v)
	}
}

// TestStoredObjectLosesAPlan checks an object that lacks a plan in force: in an older
// object the plan is restored; a newer one may come from a server with other models.
func TestStoredObjectLosesAPlan(t *testing.T) {
	s := testState(t, PolicyDefault)
	if e := s.Step(start, Stored{store.Object{Epoch: 5}}); e.Propose != nil {
		t.Fatalf("proposed %+v", e.Propose)
	}
	e := s.Step(start, Stored{store.Object{}})
	if e.Propose == nil || e.Propose.Object.Epoch != 6 || plantest.Format(e.Propose.Object.Plans[0]) != "r0 r1 r2 r3" {
		t.Fatalf("proposed %+v", e.Propose)
	}
	if e = s.Step(start, NotStored{}); e.Propose != nil {
		t.Fatal("a refused proposal is not put off")
	}
	e = s.Step(start.Add(retryDelay), Tick{})
	if e.Propose == nil {
		t.Fatal("a refused proposal is forgotten")
	}
	if e = s.Step(start.Add(retryDelay), Stored{e.Propose.Object}); e.Propose != nil {
		t.Fatalf("proposed again: %+v", e.Propose)
	}
}

// TestReplicaChangesItsModel checks a replica that is configured for another model: it
// leaves the plan of the old one, and joins the plan of the new one only when it
// reports for that model. Its earlier reports count for neither.
func TestReplicaChangesItsModel(t *testing.T) {
	rules := testRules(PolicyDefault)
	other := rules.Models[0]
	other.Name = "n"
	rules.Models = append(rules.Models, other)
	s, err := NewState(rules)
	if err != nil {
		t.Fatal(err)
	}
	as := func(id, model string) policies.Replica {
		r := testReplica(id)
		r.Model = model
		return r
	}
	settleState(s, start, Replicas{[]policies.Replica{as("r0", "m"), as("r1", "m"), as("r2", "n")}})
	for id, model := range map[string]string{"r0": "m", "r1": "m", "r2": "n"} {
		r, err := loadreport.Decode(goodReport())
		if err != nil {
			t.Fatal(err)
		}
		r.Replica, r.Model = policies.ReplicaID(id), model
		settleState(s, start, Reported{r})
	}
	plans := func() string {
		snap := s.Snapshot(start)
		return plantest.Format(snap.Models[0].Plan) + "; " + plantest.Format(snap.Models[1].Plan)
	}
	settleState(s, start, Replicas{[]policies.Replica{as("r0", "m"), as("r1", "n"), as("r2", "n")}})
	if got := plans(); got != "r0; r2" {
		t.Errorf("plans %s, want r0; r2", got)
	}
	if present, _ := s.models[0].planner.ReadyPlan(); plantest.Format(present) != "r0" {
		t.Errorf("ready in m: %s", plantest.Format(present))
	}
	if n := s.Snapshot(start).Models[1]; n.Seen != 77 || n.Replicas[0].Load.Held != 0 || n.Replicas[0].Health != resources.Unhealthy {
		t.Errorf("the reports for m count for n: seen %d, %+v", n.Seen, n.Replicas[0])
	}
	settleState(s, start, Reported{loadreport.Report{Replica: "r1", Model: "n", EngineReady: true}})
	if got := plans(); got != "r0; r2 r1" {
		t.Errorf("plans %s, want r0; r2 r1", got)
	}
}

// TestEffectsArePure checks that equal events give equal effects, independent of the
// order of maps.
func TestEffectsArePure(t *testing.T) {
	var first string
	for range 20 {
		s := testState(t, PolicyDefault)
		for i, id := range []string{"r0", "r1", "r2", "r3"} {
			r, err := loadreport.Decode(goodReport())
			if err != nil {
				t.Fatal(err)
			}
			r.Replica, r.Load.Held = policies.ReplicaID(id), policies.Tokens(20_000*i)
			settleState(s, start, Reported{r})
		}
		for i := range 5 {
			settleState(s, start.Add(time.Duration(i)*time.Second), Tick{})
		}
		snap := s.Snapshot(start)
		got := plantest.Format(snap.Models[0].Plan) + routing(snap)
		if first == "" {
			first = got
		}
		if got != first {
			t.Fatalf("%s\nthen %s", first, got)
		}
	}
}
