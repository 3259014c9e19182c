package fleetstate

import (
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/planner"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestView checks what policies see of a model's replicas: its own only, with their stages,
// and of a report its age, unless its flow is that of an earlier process.
func TestView(t *testing.T) {
	now := time.Unix(100, 0)
	g := New(Config{Grace: time.Minute, HalfLife: 2 * time.Minute})
	g.restored = map[policies.ReplicaID]replicaCounters{"c": {ID: "c", Model: "m", Reported: now.Add(-time.Second), EarlierSeen: 7}}
	g.Configure(now, []policies.Replica{{ID: "a", Model: "m"}, {ID: "b", Model: "n"}, {ID: "c", Model: "m"}, {ID: "d", Model: "m"}})
	for _, id := range []policies.ReplicaID{"a", "b"} {
		g.Get(id).HandleReport(now, &loadreport.Report{EngineReady: true, Flow: policies.Flow{Seen: 5}}, true, 0)
	}
	g.Get("d").Health = resources.Draining
	g.Refresh(now, g.Get("a"))
	g.RecordStages("m", policies.Plan{Model: "m", Stages: []policies.Stage{{Replicas: []policies.ReplicaID{"c"}}, {Replicas: []policies.ReplicaID{"a", "b"}}}})
	v := g.View(now.Add(time.Second), "m")
	if v.Grace != 60*policies.Second || v.HalfLife != 120*policies.Second || v.Get("b") != nil {
		t.Errorf("%+v", v)
	}
	type seen struct {
		id                                 policies.ReplicaID
		stage                              int
		ready, leaving, reported, restored bool
		age                                policies.Micros
		seen                               uint64
	}
	var got []seen
	for _, r := range v.Replicas {
		if !r.Reported {
			r.Age = 0 // of no report
		}
		got = append(got, seen{r.ID, r.Stage, r.Ready, r.Leaving, r.Reported, r.Restored, r.Age, r.Seen})
	}
	if want := []seen{
		{"a", 1, true, false, true, false, policies.Second, 5}, {"c", 0, false, false, true, true, 2 * policies.Second, 7}, {"d", -1, false, true, false, true, 0, 0},
	}; !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	g.RecordStages("m", policies.Plan{})
	if g.Get("a").Stage != -1 || slices.ContainsFunc(g.View(now, "m").Replicas, func(r planner.ReplicaView) bool { return r.Stage >= 0 }) {
		t.Error("a replica has a stage without a plan")
	}
}
