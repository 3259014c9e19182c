package control

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/routing"
	"github.com/cascadeinfer/cascade/xds/store"
)

// post sends a command as the operator's tool does, changed by edit.
func post(t *testing.T, c *runningControl, path string, edit func(*http.Request)) (int, string) {
	t.Helper()
	req := testkit.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+c.AdminAddr().String()+path, http.NoBody))
	req.Header.Set(AdminHeader, "1")
	if edit != nil {
		edit(req)
	}
	resp, body := do(t, req)
	if got := resp.Header.Get("content-type"); req.Method == http.MethodPost && got != "application/json" {
		t.Errorf("%s: content type %q", path, got)
	}
	return resp.StatusCode, body
}

// TestDrain drains a replica and brings it back by commands; the proxy follows,
// the status shows it, and a restart keeps it.
func TestDrain(t *testing.T) {
	f := newFakeFleet(t, 3)
	st := store.New(store.NewMemory())
	c := startControl(t, Config{Rules: fastRules(), Replicas: f.list, Store: st})
	f.replicas[1].setReport(func(m *api.LoadReport) { m.Residents, m.Pinned, m.PinnedSeconds, m.Streams = 4, 1, 12.5, 7 })
	stop := f.startReports(t, c)
	p := newProxy(t, c)
	p.waitFor(t, "three replicas", func(s *routing.Snapshot) bool { return slices.Equal(members(s, 0), []string{"r0", "r1", "r2"}) })
	waitFor(t, c, "r1's residents", func(s Status) bool { return s.Models[0].Stages[0].Replicas[1].Residents == 4 })

	code, body := post(t, c, "/drain?replica=r1", nil)
	var o DrainResult
	if err := json.Unmarshal([]byte(body), &o); err != nil || code != 200 {
		t.Fatalf("%d %v: %s", code, err, body)
	}
	if o.ID != "r1" || o.Model != "m" || o.Stage != "" || o.Health != "draining" || !slices.Equal(o.Drain, []string{"operator"}) ||
		o.Residents != 4 || o.Pinned != 1 || o.PinnedSeconds != 12.5 || o.Streams != 7 {
		t.Errorf("%s", body)
	}
	_, s := p.waitFor(t, "r1 out of its stage", func(s *routing.Snapshot) bool { return slices.Equal(members(s, 0), []string{"r0", "r2"}) })
	for _, r := range s.Routing.Models[0].Replicas {
		if r.Draining != (r.ID == "r1") {
			t.Errorf("proxy's %s: draining %v", r.ID, r.Draining)
		}
	}
	if code, body := post(t, c, "/drain?replica=r0", nil); code != 200 {
		t.Errorf("drain: %d %s", code, body)
	}
	requireMetrics(t, c, `cascade_replica_drain{model="m",replica="r1"} 1`, `cascade_replica_residents{model="m",replica="r1"} 4`,
		`cascade_replica_pinned{model="m",replica="r1"} 1`, `cascade_replica_streams{model="m",replica="r1"} 7`)
	stop()
	c.stop()

	c = startControl(t, Config{Rules: fastRules(), Replicas: f.list, Store: st})
	f.startReports(t, c)
	waitFor(t, c, "the drain from before the restart", func(s Status) bool {
		return len(s.Models[0].Unassigned) == 2 && slices.Equal(s.Models[0].Unassigned[0].Drain, []string{"operator"})
	})
	if code, body := post(t, c, "/undrain?replica=r1", nil); code != 200 {
		t.Errorf("undrain: %d %s", code, body)
	}
	waitFor(t, c, "r1 back", func(s Status) bool { return len(s.Models[0].Stages[0].Replicas) == 2 })
	list := slices.Clone(f.list)
	list[2].Draining = true
	testkit.NoError(t, c.SetReplicas(list))
	waitFor(t, c, "r2 drained by the file", func(s Status) bool {
		return slices.ContainsFunc(s.Models[0].Unassigned, func(r Replica) bool { return r.ID == "r2" && slices.Equal(r.Drain, []string{"file"}) })
	})
	if code, body := post(t, c, "/undrain?replica=r2", nil); code != 409 {
		t.Errorf("undrain of a replica that the file drains: %d %s", code, body)
	}
}

// TestMigrations checks that reported migrations are listed and counted.
func TestMigrations(t *testing.T) {
	f := newFakeFleet(t, 2)
	c := startControl(t, Config{Rules: fastRules(), Replicas: f.list})
	move := &api.Migration{Id: "r0/1", Request: "r0/77", Cause: "growth", FrontEnd: "r0", From: "r0", To: "r1", Method: "live", Transport: "shm", State: "done", Rounds: 3, Tokens: 900, Bytes: 4096, StallSeconds: 0.0008, Seconds: 0.2, StartedUnixMicros: 1_700_000_000_000_000}
	f.replicas[0].setReport(func(m *api.LoadReport) {
		m.Migrations = []*api.Migration{move, {Id: "r0/2", Request: "r0/78", Cause: "drain", FrontEnd: "r0", From: "r0", To: "r1", Method: "reprompt", State: "swap"}}
		m.Routes = []*api.Route{{Transport: "tcp", Peer: "r1", State: "held", Reason: "it broke", BytesPerSecond: 5}}
	})
	f.startReports(t, c)
	testkit.WaitFor(t, "both migrations", func() bool { return len(c.Migrations(time.Time{}, 10).Migrations) == 2 })
	st := waitFor(t, c, "the transports", func(s Status) bool { return len(s.Models[0].Stages[0].Replicas[0].Transports) > 0 })
	if got := st.Models[0].Stages[0].Replicas[0].Transports[0]; got != (Transport{Name: "tcp", Peer: "r1", State: "held", Reason: "it broke", Rate: 5}) {
		t.Errorf("transport %+v", got)
	}
	ask := func(query string) (m Migrations, code int) {
		code, body := get(t, c, "/migrations?"+query)
		if err := json.Unmarshal([]byte(body), &m); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		return m, code
	}
	all, code := ask("")
	if code != 200 || len(all.Migrations) != 2 || all.Migrations[0].ID != "r0/2" || !all.Migrations[0].Started.IsZero() {
		t.Fatalf("%d %+v", code, all)
	}
	if got := all.Migrations[1]; got.State != "done" || got.Bytes != 4096 || got.Transport != "shm" || got.Stall != 0.0008 || got.Started.UnixMicro() != move.StartedUnixMicros {
		t.Errorf("%+v", got)
	}
	if one, _ := ask("limit=1"); len(one.Migrations) != 1 || one.Migrations[0].ID != "r0/2" {
		t.Errorf("limit=1: %+v", one)
	}
	// The first migration is over, although it is still in every report; the
	// second one continues.
	if later, _ := ask("since=" + url.QueryEscape(all.Migrations[1].Reported.Format(time.RFC3339Nano))); slices.ContainsFunc(later.Migrations, func(m Migration) bool { return m.ID == "r0/1" }) {
		t.Errorf("since its end: %+v", later)
	}
	requireMetrics(t, c,
		`cascade_migrations_total{cause="growth",method="live",result="done"} 1`, `cascade_migration_bytes_total{cause="growth",method="live",result="done"} 4096`, `cascade_migrations_running 1`,
		`cascade_migration_stall_seconds_bucket{cause="growth",method="live",le="0.0005"} 0`, `cascade_migration_stall_seconds_bucket{cause="growth",method="live",le="0.001"} 1`, `cascade_migration_stall_seconds_count{cause="growth",method="live"} 1`)
}

// TestRefinementReachesProxies checks that replicas which propose boundaries
// change one, and that a proxy is sent only routes, or the plan.
func TestRefinementReachesProxies(t *testing.T) {
	f := newFakeFleet(t, 3)
	st := store.New(store.NewMemory())
	stored := policies.Plan{Model: "m", Epoch: 4, Stages: []policies.Stage{
		{Low: 0, High: 1000, Replicas: []policies.ReplicaID{"r0", "r1"}}, {Low: 1000, High: policies.Unbounded, Replicas: []policies.ReplicaID{"r2"}},
	}}
	testkit.Must(st.CompareAndSwap(t.Context(), "", store.Object{Epoch: 4, Plans: []policies.Plan{stored}}))
	r := fastRules()
	r.Policy = fleet.PolicyPaper
	c := startControl(t, Config{Rules: r, Replicas: f.list, Store: st})
	p := newProxy(t, c)
	p.waitFor(t, "the stored plan", func(s *routing.Snapshot) bool { got, ok := plan(s); return ok && len(got.Stages) == 2 })
	before := openDelta(t, c).subscribeAll(t, nil)
	var got policies.Plan
	for epoch := policies.Epoch(4); epoch < 10 && (epoch == 4 || got.Stages[0].High != 1250); epoch++ {
		// The replica whose report comes first may change the boundary alone;
		// then both propose again.
		for i, to := range []int64{1200, 1300} {
			f.replicas[i].setReport(func(m *api.LoadReport) { m.Proposal = &api.Proposal{Epoch: uint64(epoch), Low: 0, Boundary: to} })
		}
		if epoch == 4 {
			f.startReports(t, c)
		}
		_, after := p.waitFor(t, "the new boundary", func(s *routing.Snapshot) bool { next, ok := plan(s); return ok && next.Epoch > epoch })
		got, _ = plan(after)
	}
	if got.Stages[0].High != 1250 || got.Stages[1].Low != 1250 || !slices.Equal(got.Stages[0].Replicas, stored.Stages[0].Replicas) {
		t.Errorf("%+v", got)
	}
	waitFor(t, c, "the roll-out's end", func(s Status) bool { return s.PublishedEpoch == got.Epoch && s.Phase == "idle" })
	for name := range openDelta(t, c).subscribeAll(t, before) {
		if !strings.HasPrefix(name, resources.RouteType) && !strings.HasPrefix(name, resources.RoutingType) {
			t.Errorf("sent: %s", name)
		}
	}
	if m := c.Status().Models[0]; !m.Refining || m.Reason != "boundaries refined" {
		t.Errorf("status: refining %v, %q", m.Refining, m.Reason)
	}
}
