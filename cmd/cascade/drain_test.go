package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

// fakeControl is a control plane that drains by script: with every look at its
// status a replica has a request less.
type fakeControl struct {
	t *testing.T

	mu       sync.Mutex
	replicas map[policies.ReplicaID]*control.Replica
	looks    int
	looked   func(n int) // called at every look; nil does nothing
}

func newFakeControl(t *testing.T) (*fakeControl, string) {
	age := 0.1
	f := &fakeControl{t: t, replicas: map[policies.ReplicaID]*control.Replica{
		"busy": {ID: "busy", Health: "healthy", Connected: true, ReportAge: &age, Residents: 2, Pinned: 1, PinnedSeconds: 39.6, Streams: 4},
		"idle": {ID: "idle", Health: "healthy", Connected: true, ReportAge: &age},
		"mute": {ID: "mute", Health: "unhealthy"},
		"held": {ID: "held", Health: "draining", Connected: true, ReportAge: &age, Drain: []string{"file"}},
	}}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	return f, server.URL
}

// ServeHTTP implements http.Handler.
func (f *fakeControl) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.URL.Path == "/status" {
		f.looks++
		if f.looked != nil {
			f.looked(f.looks)
		}
		m := control.Model{Name: "m"}
		for _, r := range f.replicas {
			if len(r.Drain) > 0 && r.Residents > 0 {
				r.Residents--
				r.Pinned = min(r.Pinned, r.Residents)
			}
			m.Unassigned = append(m.Unassigned, *r)
		}
		json.NewEncoder(w).Encode(control.Status{Models: []control.Model{m}})
		return
	}
	if r.Method != http.MethodPost || r.Header.Get(control.AdminHeader) == "" {
		f.t.Errorf("%s %s without %s", r.Method, r.URL, control.AdminHeader)
	}
	id := policies.ReplicaID(r.URL.Query().Get("replica"))
	rep := f.replicas[id]
	switch {
	case rep == nil:
		w.WriteHeader(http.StatusNotFound)
		json.NewEncoder(w).Encode(map[string]string{"error": fmt.Sprintf("replica %q is not in the fleet", id)})
		return
	case r.URL.Path == "/drain":
		rep.Health, rep.Drain = "draining", []string{"operator"}
	case r.URL.Path == "/undrain" && rep.Drain != nil && rep.Drain[0] == "file":
	case r.URL.Path == "/undrain":
		rep.Health, rep.Drain = "healthy", nil
	default:
		w.WriteHeader(http.StatusNotFound)
		return
	}
	json.NewEncoder(w).Encode(control.DrainResult{Model: "m", Stage: "s1", Replica: *rep})
}

// command runs a command line against a control plane.
func command(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(ctx, args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestDrain(t *testing.T) {
	f, url := newFakeControl(t)
	code, out, errs := command(t.Context(), "drain", "busy", "idle", "--control", url)
	want := "busy: draining, 2 requests left, 1 of them pinned (about 40s more)\nidle: draining, 0 requests left\n"
	if code != 0 || out != want || f.looks != 0 {
		t.Errorf("code %d, %d looks, %s\n got %s\nwant %s", code, f.looks, errs, out, want)
	}
	code, out, errs = command(t.Context(), "drain", "none", "mute", "--control", url)
	if code != 1 || !strings.Contains(errs, `drain none: replica "none" is not in the fleet`) || !strings.Contains(out, "mute: draining, its migrator does not report") {
		t.Errorf("code %d, %s%s", code, out, errs)
	}
	// Accepted drains are printed, also where another one was rejected.
	code, out, errs = command(t.Context(), "drain", "idle", "none", "--wait", "--control", url)
	if code != 1 || !strings.Contains(errs, "drain none: ") || out != "idle: draining, 0 requests left\n" || f.looks != 0 {
		t.Errorf("code %d, %d looks, %s%s", code, f.looks, out, errs)
	}
}

func TestDrainWaits(t *testing.T) {
	f, url := newFakeControl(t)
	code, out, errs := command(t.Context(), "drain", "busy", "idle", "--wait", "--timeout", "0", "--control", url)
	want := []string{"busy: 2 requests left, 1 of them pinned", "busy: 1 request left", "busy: empty; its migrator carries 4 streams of requests that run elsewhere\n"}
	at := 0
	for _, w := range want {
		i := strings.Index(out[at:], w)
		if i < 0 {
			t.Fatalf("%q is missing or late:\n%s", w, out)
		}
		at += i
	}
	if code != 0 || !strings.Contains(out, "idle: empty\n") {
		t.Errorf("code %d, %s%s", code, out, errs)
	}
	// A replica that leaves the fleet is empty, too.
	f.mu.Lock()
	f.looked = func(int) { delete(f.replicas, "mute") }
	f.mu.Unlock()
	if code, out, errs := command(t.Context(), "drain", "mute", "--wait", "--json", "--control", url); code != 0 || !strings.Contains(out, `"health": "gone"`) {
		t.Errorf("code %d, %s%s", code, out, errs)
	}
}

func TestDrainEndsEarly(t *testing.T) {
	f, url := newFakeControl(t)
	code, out, errs := command(t.Context(), "drain", "mute", "--wait", "--timeout", "50ms", "--control", url)
	if code != 1 || !strings.Contains(errs, `mute: not empty within 50ms: its migrator does not report`) || !strings.Contains(errs, `until "cascade undrain mute"`) {
		t.Errorf("code %d, %s%s", code, out, errs)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	f.mu.Lock()
	f.looked = func(int) { stop() }
	f.mu.Unlock()
	code, out, errs = command(ctx, "drain", "mute", "--wait", "--control", url)
	if code != 1 || !strings.Contains(errs, "mute: interrupted") {
		t.Errorf("code %d, %s%s", code, out, errs)
	}
}

// A control plane that does not respond has another error than a missing one.
func TestDrainUnanswered(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer server.Close()
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	code, out, errs := command(ctx, "drain", "busy", "--control", server.URL)
	if code != 1 || out != "" || !strings.Contains(errs, "did not answer") || strings.Contains(errs, "cascade up") {
		t.Errorf("code %d, %s%s", code, out, errs)
	}
}

func TestUndrain(t *testing.T) {
	_, url := newFakeControl(t)
	code, out, errs := command(t.Context(), "undrain", "busy", "held", "--control", url)
	if want := "busy: healthy, in stage s1 of m\nheld: still drained by file\n"; code != 0 || out != want {
		t.Errorf("code %d, %s\n got %s\nwant %s", code, errs, out, want)
	}
	code, out, errs = command(t.Context(), "undrain", "none", "--json", "--control", url)
	if code != 1 || strings.TrimSpace(out) != "[]" {
		t.Errorf("code %d, %s%s", code, out, errs)
	}
}
