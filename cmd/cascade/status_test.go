package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

var update = flag.Bool("update", false, "write the golden files anew")

// fullStatus has every case that the tables distinguish.
func fullStatus() control.Status {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	age, failed, streams := 0.25, now.Add(-90*time.Second), 7
	change := threeStages(2)
	change.Time = now.Add(-time.Minute)
	return control.Status{
		Time: now, Epoch: 2, Policy: "default", PublishedEpoch: 1, Phase: "add", Error: "no endpoint for stage s1",
		Models: []control.Model{{
			Name: "m", Epoch: 2, Reason: "better", Planner: "no better plan", Seen: 1234, Rate: 5.5, BytesPerToken: 4.25, EstimateError: 0.031,
			Stages: []control.Stage{
				{Name: "s0", High: at(100), Replicas: []control.Replica{
					{ID: "a", Health: "healthy", Weight: 100, Running: 3, Waiting: 1, Held: 5000, Promised: 70, Iteration: 0.0123, ProxyRequests: &streams, ReportAge: &age, Connected: true,
						Transports: []control.Transport{{Name: "shm", State: "ready"}, {Name: "tcp", State: "ready"}, {Name: "shm", Peer: "b", State: "ready", Rate: 1e9}}},
					{ID: "b", Health: "unhealthy", Weight: 100, ReportAge: &age, Note: "counts by other buckets", Transports: []control.Transport{{Name: "shm", State: "broken", Reason: "no such directory"}, {Name: "tcp", State: "ready"}}},
				}},
				{Name: "s1", Low: 100},
			},
			Unassigned: []control.Replica{{ID: "c", Health: "draining", Drain: []string{"file", "operator"}, Connected: true, Residents: 3, Pinned: 2}},
		}},
		Nodes: []control.Node{
			{ID: "edge", Connected: true, Epoch: 1, Types: map[string]control.NodeType{"Listener": {Acked: 1}, "Cluster": {Acked: 8, Pending: 2}, "Secret": {}},
				NACKs: 3, LastError: "bad range", LastErrorAt: &failed},
			{ID: "edge-2", Connected: true, Current: true, Epoch: 1}, {ID: "edge-3", Connected: true, Fenced: true, Reason: "fenced: did not acknowledge phase add"}, {ID: "edge-4"},
			{ID: "canary-1", Connected: true, Epoch: 2, Group: "canary", Reason: "canary: watched for another 1.2 s"},
		},
		Groups: []control.Group{
			{Name: "canary", Phase: "watch", PublishedEpoch: 2, Nodes: 1, Reason: "canary: watched for another 1.2 s"},
			{Phase: "idle", PublishedEpoch: 1, Nodes: 3},
		},
		Refused: []control.Refusal{{Type: "Cluster", Name: "c", Version: "0a1b", Node: "edge", Text: "bad range"}},
		History: []control.Change{change},
	}
}

// TestStatusTable compares with a golden file; -update writes it.
func TestStatusTable(t *testing.T) {
	var got bytes.Buffer
	st := fullStatus()
	if err := writeStatus(&got, st); err != nil {
		t.Fatal(err)
	}
	// The history shows local time.
	text := strings.ReplaceAll(got.String(), st.History[0].Time.Local().Format(time.TimeOnly), "03:03:05")
	golden := filepath.Join("testdata", "status.golden")
	if *update {
		if err := os.WriteFile(golden, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Error(diff)
	}
	got.Reset()
	if err := writeStatus(&got, control.Status{}); err != nil || !strings.Contains(got.String(), "No proxy has connected yet.") {
		t.Errorf("empty status: %v\n%s", err, got.String())
	}
}

// TestStatusOfOtherServer: a server that is not a control plane is recognised.
func TestStatusOfOtherServer(t *testing.T) {
	answers := map[string]func(w http.ResponseWriter){
		"/html/status":    func(w http.ResponseWriter) { fmt.Fprint(w, "<html>") },
		"/missing/status": func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) },
		"/array/status":   func(w http.ResponseWriter) { fmt.Fprint(w, "[1]") },
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answers[r.URL.Path](w) }))
	defer server.Close()
	for path := range answers {
		var out, errs bytes.Buffer
		code := run(t.Context(), []string{"status", "--control", server.URL + strings.TrimSuffix(path, "/status")}, &out, &errs)
		if code != 1 || !strings.Contains(errs.String(), "is not a control plane") {
			t.Errorf("%s: code %d, %s", path, code, errs.String())
		}
	}
}

// TestStatusWatch shows the state again and again, through a control plane
// that is away for a moment, until it is interrupted.
func TestStatusWatch(t *testing.T) {
	looks := make(chan int)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, ok := <-looks
		if !ok || n == 2 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, `{"epoch":42,"policy":"default"}`)
	}))
	defer server.Close()
	defer close(looks)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	out, code := newOutput(), make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"status", "--watch", "--every", "100ms", "--control", server.URL}, out, out)
	}()
	for n := range 4 {
		select {
		case looks <- n + 1:
		case <-time.After(patience):
			t.Fatal("it does not look again")
		}
	}
	stop()
	if c := <-code; c != 0 {
		t.Errorf("code %d", c)
	}
	text, _ := out.read()
	if n := strings.Count(text, "epoch 42"); n < 2 || !strings.Contains(text, "503 Service Unavailable") {
		t.Errorf("shown %d times:\n%s", n, text)
	}
}

// TestStatusTransports: what works, and what does not, in few words.
func TestStatusTransports(t *testing.T) {
	shm, tcp := control.Transport{Name: "shm", State: "ready"}, control.Transport{Name: "tcp", State: "ready"}
	broken := control.Transport{Name: "shm", State: "broken", Reason: "not\nhere"}
	from := func(name, state, peer string) control.Transport {
		return control.Transport{Name: name, Peer: policies.ReplicaID(peer), State: state, Reason: strings.Repeat("w", 100)}
	}
	for want, list := range map[string][]control.Transport{
		"-":                          nil,
		"shm, tcp":                   {shm, tcp, from("shm", "ready", "a")},
		"shm broken, tcp":            {broken, tcp},
		"shm broken":                 {broken},
		"shm (2 held), tcp (1 held)": {shm, tcp, from("shm", "held", "a"), from("shm", "held", "b"), from("tcp", "held", "c")},
		"tcp":                        {{Name: "cuda", State: "unsuited", Reason: "no GPU"}, tcp},
		"shm broken (1 held), tcp":   {broken, tcp, from("shm", "held", "a")},
	} {
		if got := transports(list); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
