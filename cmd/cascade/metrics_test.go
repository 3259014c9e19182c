package main

import (
	"io"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/cascadeinfer/cascade/migrator/stream"
	"github.com/cascadeinfer/cascade/policies"
)

// TestFrontMetrics reads every metric off a state with a value of its own in
// every field.
func TestFrontMetrics(t *testing.T) {
	state := stream.Status{
		Load:        policies.Load{Running: 1, Waiting: 2, Held: 3, Promised: 4, Iteration: 0.5},
		Flow:        policies.Flow{Arrivals: []float64{1, 5}, Tokens: []float64{3, 4}, Prefill: []float64{2, 6}, Seen: 9},
		EngineReady: true, BytesPerToken: 4.5, EstimateError: 0.25,
	}
	c := newFrontCollector(func() stream.Status { return state }, "r0", "m")
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(c)
	want := map[string]float64{
		"engine_ready": 1, "draining": 0, "running": 1, "waiting": 2, "held_tokens": 3, "promised_tokens": 4, "iteration_seconds": 0.5,
		"requests_seen_total": 9, "arrival_rate": 6, "token_rate": 7, "prefill_rate": 8, "bytes_per_token": 4.5, "estimate_error_ratio": 0.25,
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		name := f.GetName()[len("cascade_migrator_"):]
		m := f.GetMetric()[0]
		got := m.GetGauge().GetValue() + m.GetCounter().GetValue()
		if w, ok := want[name]; !ok || got != w {
			t.Errorf("%s = %v, want %v", name, got, w)
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
	problems, err := testutil.GatherAndLint(r)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

func TestFrontReady(t *testing.T) {
	for _, c := range []struct {
		ready, draining bool
		want            string
	}{{true, false, ""}, {true, true, "draining"}, {false, true, "draining"}, {false, false, "the engine does not answer /health"}} {
		if got := frontReady(stream.Status{EngineReady: c.ready, Draining: c.draining}); got != c.want {
			t.Errorf("ready %v, draining %v: %q", c.ready, c.draining, got)
		}
	}
}

// TestAdmin: a daemon is healthy as long as it lives, and ready when it says so.
func TestAdmin(t *testing.T) {
	why := "waiting"
	h := adminHandler(newRegistry(), func() string { return why })
	for _, c := range []struct {
		why, path string
		status    int
	}{{"waiting", "/healthz", 200}, {"waiting", "/readyz", 503}, {"", "/readyz", 200}, {"", "/metrics", 200}, {"", "/", 404}} {
		why = c.why
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", c.path, nil))
		if body, _ := io.ReadAll(w.Body); w.Code != c.status {
			t.Errorf("%s answers %d %s", c.path, w.Code, body)
		}
	}
}
