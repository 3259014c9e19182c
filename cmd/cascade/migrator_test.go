package main

import (
	"errors"
	"io"
	"net/http/httptest"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/adminserver"
	"github.com/cascadeinfer/cascade/migrator/frontend"
)

func TestFrontendReadiness(t *testing.T) {
	for _, c := range []struct {
		ready, draining bool
		room            error
		want            string
	}{
		{true, false, nil, ""}, {true, true, nil, "draining"}, {false, true, nil, "draining"}, {false, false, nil, "the engine does not answer /health"},
		{true, false, errors.New("full"), "full"}, {true, true, errors.New("full"), "draining"},
	} {
		if got := frontendReadiness(frontend.Status{EngineReady: c.ready, Draining: c.draining}, c.room); got != c.want {
			t.Errorf("ready %v, draining %v: %q", c.ready, c.draining, got)
		}
	}
	if got := frontendReadiness(frontend.Status{EngineHung: true}, nil); got != "the engine answers /health and makes no progress: restart it" {
		t.Errorf("a hung engine: %q", got)
	}
}

// TestAdmin checks that a daemon is healthy while it runs, and ready when it has no reason not to be.
func TestAdmin(t *testing.T) {
	why := "waiting"
	h := adminserver.Handler(adminserver.NewRegistry(), func() string { return why })
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
