package control

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/balance"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/routing"
	"github.com/cascadeinfer/cascade/xds/store"
)

// testProxy is a follower of the plan, with the snapshots that it was sent.
type testProxy struct {
	updates chan *routing.Snapshot
}

// Update implements routing.Watcher.
func (p *testProxy) Update(s *routing.Snapshot) { p.updates <- s }

func newProxy(t *testing.T, c *runningControl) *testProxy {
	t.Helper()
	p := &testProxy{updates: make(chan *routing.Snapshot, 1000)}
	cl := testkit.Must(routing.New(routing.Config{Target: c.Addr().String(), NodeID: "proxy-1", Watcher: p}))
	testkit.Run(t, cl.Run)
	return p
}

// waitFor returns the first update that fits, and those before it.
func (p *testProxy) waitFor(t *testing.T, what string, fits func(*routing.Snapshot) bool) (before []*routing.Snapshot, last *routing.Snapshot) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	for {
		select {
		case s := <-p.updates:
			if fits(s) {
				return before, s
			}
			before = append(before, s)
		case <-ctx.Done():
			t.Fatalf("timed out waiting for %s; %d updates", what, len(before))
		}
	}
}

// plan returns the model's plan; false if there is none.
func plan(s *routing.Snapshot) (policies.Plan, bool) {
	if s.Plan() == nil || len(s.Routing.Models) != 1 {
		return policies.Plan{}, false
	}
	return s.Routing.Models[0].Plan, true
}

// members lists the replicas of a stage.
func members(s *routing.Snapshot, stage int) []string {
	p, ok := plan(s)
	if !ok || stage >= len(p.Stages) {
		return nil
	}
	var ids []string
	for _, id := range p.Stages[stage].Replicas {
		ids = append(ids, string(id))
	}
	return ids
}

// TestPlanReachesProxies checks that a skewed mix makes the fleet divide its first stage,
// and that a follower gets the change in one step, with the addresses of all members. Package
// publish checks the order for proxies that route by tables.
func TestPlanReachesProxies(t *testing.T) {
	f := newFakeFleet(t, 8)
	c := startControl(t, Config{Rules: fastRules(), Replicas: f.list})
	p := newProxy(t, c)
	_, first := p.waitFor(t, "the first plan", func(s *routing.Snapshot) bool { got, ok := plan(s); return ok && len(got.Stages) == 1 })
	one, _ := plan(first)
	f.setReports(skewReport)
	f.startReports(t, c)
	before, last := p.waitFor(t, "stages", func(s *routing.Snapshot) bool { got, ok := plan(s); return ok && len(got.Stages) > 1 })
	two, _ := plan(last)
	if two.Epoch <= one.Epoch {
		t.Errorf("epoch %d after %d", two.Epoch, one.Epoch)
	}
	for i, s := range append(before, last) {
		got, _ := plan(s)
		known := make(map[policies.ReplicaID]bool)
		for _, r := range s.Routing.Models[0].Replicas {
			known[r.ID] = r.At.IsValid()
		}
		seen := 0
		for _, stage := range got.Stages {
			for _, id := range stage.Replicas {
				if seen++; !known[id] {
					t.Errorf("update %d: no address of %s", i, id)
				}
			}
		}
		if want := one; seen != 8 || got.Epoch != two.Epoch && !reflect.DeepEqual(got, want) {
			t.Errorf("update %d: neither plan: %v", i, got)
		}
	}
	if m := c.Status().Models[0]; !strings.Contains(m.Reason, "better plan") {
		t.Errorf("reason %q", m.Reason)
	}
}

// TestReplicasChange drains one replica by the configuration and adds another;
// the proxy follows.
func TestReplicasChange(t *testing.T) {
	f := newFakeFleet(t, 4)
	added := f.replicas[3]
	c := startControl(t, Config{Rules: fastRules(), Replicas: f.list[:3]})
	f.replicas = f.replicas[:3]
	f.startReports(t, c)
	p := newProxy(t, c)
	has := func(want ...string) func(*routing.Snapshot) bool {
		return func(s *routing.Snapshot) bool { return slices.Equal(members(s, 0), want) }
	}
	p.waitFor(t, "three replicas", has("r0", "r1", "r2"))
	list := slices.Clone(f.list)
	list[1].Draining = true
	testkit.NoError(t, c.SetReplicas(list))
	p.waitFor(t, "r1 out of its stage", has("r0", "r2"))
	(&fakeFleet{replicas: []*fakeReplica{added}}).startReports(t, c)
	p.waitFor(t, "r3 in the stage", has("r0", "r2", "r3"))
	if err := c.SetReplicas(nil); err == nil {
		t.Error("SetReplicas accepted an empty list")
	}
}

// TestRestartSendsNoResources checks that a proxy which reconnects with its
// versions to a control plane that was restarted on the same files is sent no
// resource.
func TestRestartSendsNoResources(t *testing.T) {
	dir := t.TempDir()
	f := newFakeFleet(t, 3)
	run := func() *runningControl {
		rules := fastRules()
		rules.Speed = 10 // weights drift to neutral half a second after the last report
		st := store.New(testkit.Must(store.NewFile(dir)))
		return startControl(t, Config{Rules: rules, Replicas: f.list, Store: st})
	}
	c := run()
	// A load that changes each weight by exactly one step.
	f.replicas[0].setReport(func(m *api.LoadReport) { m.Load.HeldTokens = 15_000 })
	f.startReports(t, c)
	newProxy(t, c).waitFor(t, "changed weights", func(s *routing.Snapshot) bool {
		return s.Plan() != nil && !slices.ContainsFunc(s.Routing.Models[0].Replicas, func(r resources.RoutedReplica) bool { return r.Weight == balance.NeutralWeight })
	})
	have := openDelta(t, c).subscribeAll(t, nil)
	if len(have) != 2*policies.MaxStages+3 {
		t.Fatalf("new proxy was sent %d resources", len(have))
	}
	// The endpoints may follow the plan of the same weights.
	for same := 0; same < 3; same++ {
		if sent := openDelta(t, c).subscribeAll(t, have); len(sent) > 0 {
			maps.Copy(have, sent)
			same = -1
		}
	}
	c.stop()

	c = run()
	if sent := openDelta(t, c).subscribeAll(t, have); len(sent) > 0 {
		t.Errorf("sent again after the restart: %v", slices.Sorted(maps.Keys(sent)))
	}
	if c.fleet.Snapshot().Epoch != 1 {
		t.Errorf("epoch %d", c.fleet.Snapshot().Epoch)
	}
}

// waitFor waits until the status fits.
func waitFor(t *testing.T, c *runningControl, what string, fits func(Status) bool) Status {
	t.Helper()
	return testkit.WaitForValue(t, what, c.Status, func(s Status) bool {
		return len(s.Models) > 0 && len(s.Models[0].Stages) > 0 && fits(s)
	})
}

func get(t *testing.T, c *runningControl, path string) (int, string) {
	t.Helper()
	req := testkit.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+c.AdminAddr().String()+path, http.NoBody))
	resp, body := do(t, req)
	return resp.StatusCode, body
}

// requireMetrics checks that the page of metrics has lines.
func requireMetrics(t *testing.T, c *runningControl, lines ...string) {
	t.Helper()
	_, page := get(t, c, "/metrics")
	for _, line := range lines {
		if !strings.Contains(page, line+"\n") {
			t.Errorf("no %s in\n%s", line, page)
		}
	}
}

// do sends a request and reads the response.
func do(t *testing.T, req *http.Request) (*http.Response, string) {
	t.Helper()
	resp, err := http.DefaultClient.Do(req)
	testkit.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	testkit.NoError(t, err)
	return resp, string(body)
}

func TestAdmin(t *testing.T) {
	f := newFakeFleet(t, 2)
	c := startControl(t, Config{Rules: fastRules(), Replicas: f.list})
	f.replicas[0].setReport(func(m *api.LoadReport) { m.Load = &api.Load{Running: 3, HeldTokens: 77} })
	f.startReports(t, c)
	newProxy(t, c)
	waitFor(t, c, "a report and a node that is current", func(s Status) bool {
		r := s.Models[0].Stages[0].Replicas[0]
		return r.Held == 77 && r.ReportAge != nil && len(s.Nodes) == 1 && s.Nodes[0].Current && s.Nodes[0].Epoch == 1
	})
	code, body := get(t, c, "/status")
	var s Status
	if err := json.Unmarshal([]byte(body), &s); err != nil || code != 200 {
		t.Fatalf("%d %v: %s", code, err, body)
	}
	m := s.Models[0]
	if m.Name != "m" || m.Stages[0].Name != "s0" || m.Stages[0].High != nil || m.Reason != "first plan" || len(s.History) != 1 || s.Nodes[0].ID != "proxy-1" {
		t.Errorf("%s", body)
	}
	requireMetrics(t, c, `cascade_plan_epoch{model="m"} 1`, `cascade_replica_held_tokens{model="m",replica="r0"} 77`,
		`cascade_replica_healthy{model="m",replica="r1",stage="s0"} 1`, `cascade_node_epoch{node="proxy-1"} 1`, `cascade_published_epoch 1`)
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/": 200, "/nothing": 404} {
		if code, _ := get(t, c, path); code != want {
			t.Errorf("%s: %d", path, code)
		}
	}
	h, err := healthv1.NewHealthClient(dial(t, c)).Check(t.Context(), &healthv1.HealthCheckRequest{})
	if err != nil || h.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("gRPC health: %v, %v", h, err)
	}
}

// TestNotReady checks that the control plane is alive but not ready until the
// first plan is stored and published.
func TestNotReady(t *testing.T) {
	f := newFakeFleet(t, 1)
	c := startControl(t, Config{Rules: fastRules(), Replicas: f.list, Store: store.New(readOnly{store.NewMemory()})})
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 503, "/status": 200, "/metrics": 200} {
		if code, body := get(t, c, path); code != want {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
}

// readOnly is a backend that rejects every write of the root.
type readOnly struct{ store.Backend }

func (readOnly) SwapRoot(context.Context, store.Version, []byte) (store.Version, error) {
	return "", io.ErrShortWrite
}

func TestNewRefuses(t *testing.T) {
	good := func() Config {
		return Config{Rules: fastRules(), Replicas: []policies.Replica{{ID: "r", Model: "m", Address: "127.0.0.1:1", Capacity: policies.Capacity{KV: 1, Batch: 1}}}, Listen: "127.0.0.1:0", Admin: "127.0.0.1:0"}
	}
	for _, c := range []struct {
		edit func(*Config)
		want string
	}{
		{func(c *Config) { c.Listen = ":0" }, "not a loopback address"},
		{func(c *Config) { c.Listen = "0.0.0.0:0" }, "not a loopback address"},
		{func(c *Config) { c.Listen = "example.org:1" }, "not a loopback address"},
		{func(c *Config) { c.Listen = "nonsense" }, "listen nonsense"},
		{func(c *Config) { c.Admin = "0.0.0.0:0"; c.TLS = new(tls.Config) }, "admin"},
		{func(c *Config) { c.Length = "0.0.0.0:0" }, "length"},
		{func(c *Config) { c.Stop = -1 }, "stop"},
		{func(c *Config) { c.Settings.Estimator = "guess" }, "estimator"},
		{func(c *Config) { c.Settings.Listen = "nonsense" }, "listen"},
		{func(c *Config) { c.Models[0].Hosts = []string{"a b"} }, "host"},
		{func(c *Config) { c.Replicas = nil }, "no replica"},
		{func(c *Config) { c.Policy = "guess" }, "policy"},
		{func(c *Config) { c.Listen, c.TLS = "0.0.0.0:0", new(tls.Config) }, ""}, // only TLS allows addresses other than loopback
	} {
		cfg := good()
		c.edit(&cfg)
		ctl, err := New(cfg)
		testkit.WantError(t, err, c.want)
		if ctl != nil {
			ctl.Close()
		}
	}
	c := testkit.Must(New(good()))
	taken := good()
	taken.Listen = c.Addr().String()
	if _, err := New(taken); err == nil {
		t.Error("New accepted an address in use")
	}
	c.Close()
}
