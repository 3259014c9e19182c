package control

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/routing"
	"github.com/cascadeinfer/cascade/xds/store"
)

// TestPlanCommands rolls back to an earlier plan, pins it, and unpins it;
// proxies follow, the history lists it, and a restart keeps the pin.
func TestPlanCommands(t *testing.T) {
	f := newFakeFleet(t, 3)
	st := store.New(store.NewMemory())
	split := policies.Plan{Model: "m", Epoch: 4, Stages: []policies.Stage{
		{Low: 0, High: 100, Replicas: []policies.ReplicaID{"r0"}},
		{Low: 100, High: policies.Unbounded, Replicas: []policies.ReplicaID{"r1", "r2"}},
	}}
	if _, err := st.CompareAndSwap(t.Context(), "", store.Object{
		Epoch: 4, Plans: []policies.Plan{split}, FormerPlans: []store.FormerPlan{{Model: "m", Epoch: 2, Counts: []int{3}}},
	}); err != nil {
		t.Fatal(err)
	}
	c := startControl(t, Config{Rules: fastRules(), Replicas: f.list, Store: st})
	stop := f.startReports(t, c)
	p := newProxy(t, c)
	stages := func(n int) {
		t.Helper()
		p.waitFor(t, "the stages", func(s *routing.Snapshot) bool {
			got, ok := plan(s)
			return ok && len(got.Stages) == n
		})
	}
	stages(2)
	order := func(path string, want int) (plans PlanHistory) {
		t.Helper()
		code, body := post(t, c, path, nil)
		if code != want {
			t.Fatalf("%s: %d %s", path, code, body)
		}
		testkit.NoError(t, json.Unmarshal([]byte(body), &plans))
		return plans
	}
	got := order("/plan/rollback?model=m&by=ann", 200)
	if got.Epoch != 5 || len(got.History) != 2 || got.History[1].Epoch != 4 || len(got.History[1].Counts) != 2 {
		t.Errorf("%+v", got)
	}
	// It need not be the last one: the planner may have decided something
	// since.
	if !slices.ContainsFunc(got.Decisions, func(d Decision) bool {
		return d.Decision == "rolled back" && d.By == "ann" && d.Epoch == 5 && len(d.Stages) == 1
	}) {
		t.Errorf("%+v", got.Decisions)
	}
	stages(1)
	order("/plan/rollback?model=m&epoch=2", 409)
	got = order("/plan/pin?model=m&epoch=4&by=ann", 200)
	if len(got.Pins) != 1 || got.Pins[0].Epoch != 4 || got.Epoch != 6 {
		t.Errorf("%+v", got)
	}
	stages(2)
	order("/plan/rollback?model=m", 409)
	if first := c.Status(); !first.Time.Equal(c.Status().Time) && !c.Status().Time.Equal(c.Status().Time) {
		t.Error("each request has a status of its own")
	}
	if s := c.Status(); s.Models[0].Pinned == nil || s.Models[0].Pinned.By != "ann" || !s.Planner.Leads {
		t.Errorf("%+v", s)
	}
	stop()
	c.stop()

	c = startControl(t, Config{Rules: fastRules(), Replicas: f.list, Store: st})
	f.startReports(t, c)
	waitFor(t, c, "the pin from before the restart", func(s Status) bool { return s.Models[0].Pinned != nil })
	got = order("/plan/unpin?model=m", 200)
	if len(got.Pins) != 0 {
		t.Errorf("%+v", got)
	}
}
