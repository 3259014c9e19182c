package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/daemon"
	"github.com/cascadeinfer/cascade/cmd/internal/discovery"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

const baseText = `control:
  any_removal: true
models:
- name: m
  context: 4096
  profile: h200-llama-3.1-8b
`

type keeperTest struct {
	t       *testing.T
	file    discovery.FleetFile
	changes []discovery.Change
	faults  []string
	// conditions are the last ones of all Pods: "NAME REASON".
	conditions []string
}

func newKeeperTest(t *testing.T) *keeperTest {
	dir := t.TempDir()
	k := &keeperTest{t: t, file: discovery.FleetFile{Base: filepath.Join(dir, "base.yaml"), Path: filepath.Join(dir, "fleet.yaml")}}
	k.writeBase(baseText)
	return k
}

func (k *keeperTest) writeBase(text string) {
	testkit.NoError(k.t, os.WriteFile(k.file.Base, []byte(text), 0o600))
}

func (k *keeperTest) start() *keeper {
	return newKeeper(keeperConfig{
		file: k.file, rules: discovery.Rules{PeerPort: 9100, EnginePort: 8000}, log: slog.New(slog.DiscardHandler),
		changed: func(c []discovery.Change) { k.changes = append(k.changes, c...) },
		faults:  func(time.Time) []string { return k.faults },
		conditions: func(all []discovery.PodCondition) {
			k.conditions = nil
			for _, c := range all {
				k.conditions = append(k.conditions, c.Pod+" "+c.Want.Reason)
			}
		},
	})
}

// replicas returns the ids in the fleet file, with "-" before those that drain.
func (k *keeperTest) replicas() string {
	fleet, err := config.Load(k.file.Path)
	if err != nil {
		return err.Error()
	}
	var ids []string
	for _, r := range fleet.Replicas {
		if r.Drain {
			r.ID = "-" + r.ID
		}
		ids = append(ids, r.ID)
	}
	return strings.Join(ids, " ")
}

func (k *keeperTest) expect(want string) {
	k.t.Helper()
	if got := k.replicas(); got != want {
		k.t.Errorf("the fleet file has %q, want %q", got, want)
	}
}

func pods(list ...discovery.Pod) discovery.Cluster {
	for i := range list {
		list[i].UID, list[i].Node = "u", "n"
	}
	return discovery.Cluster{Source: "InferencePool llm/vllm", Port: 9000, Pods: list}
}

func TestKeeper(t *testing.T) {
	test := newKeeperTest(t)
	k := test.start()
	a, b := discovery.Pod{Name: "a", IP: "127.0.0.2", Ready: true}, discovery.Pod{Name: "b", IP: "127.0.0.3", Ready: true}
	k.apply(pods(a, b))
	test.expect("a.u b.u")
	if len(test.changes) != 2 || test.changes[0].State != discovery.Serving {
		t.Errorf("changes %+v", test.changes)
	}
	expectConditions := func(want ...string) {
		t.Helper()
		if !slices.Equal(test.conditions, want) {
			t.Errorf("conditions %q, want %q", test.conditions, want)
		}
	}
	expectConditions("a Serving", "b Serving")
	b.Terminating = true
	k.apply(pods(a, b))
	test.expect("a.u -b.u")

	// A base file with an error changes nothing, is a fault, and is read again. Conditions are tried again meanwhile.
	test.writeBase(baseText + "speed: -1\n")
	expectConditions("b Draining", "a Serving")
	k.apply(pods(a))
	test.expect("a.u -b.u")
	test.conditions = nil
	k.repeat()
	expectConditions("a Serving")
	if s := k.status(time.Now()); len(s.Faults) != 1 || !strings.Contains(s.Faults[0], "base.yaml: line 7: speed") {
		t.Errorf("faults %q", s.Faults)
	}
	test.writeBase(baseText + "speed: 1\n")
	k.repeat()
	test.expect("a.u")
	if s := k.status(time.Now()); len(s.Faults) != 0 || s.Replicas != 1 || s.writes != 3 {
		t.Errorf("status %+v", s)
	}
	test.conditions = nil
	k.repeat() // nothing to do, but conditions that could not be written are tried again
	expectConditions("a Serving")
	if s := k.status(time.Now()); s.writes != 3 {
		t.Errorf("%d writes", s.writes)
	}

	// What cannot be decided is a fault; only what is left out is new.
	test.changes = nil
	bad := discovery.Pod{Name: "bad", IP: "x", Ready: true}
	fresh := discovery.Pod{Name: "fresh", IP: "127.0.0.9", Ready: true, Settings: map[string]string{discovery.Prefix + "model": "m"}}
	test.writeBase(strings.Replace(baseText, "- name: m", "- name: n\n  context: 4096\n  profile: h200-llama-3.1-8b\n- name: m", 1))
	k.apply(pods(a, b, bad, fresh))
	test.expect("a.u")
	if s := k.status(time.Now()); len(s.Faults) != 1 || s.Pods[0].State != "serving" || s.Pods[len(s.Pods)-1].State != "left out" {
		t.Errorf("status %+v", s)
	}
	if len(test.changes) == 0 {
		t.Error("what is left out is no change")
	}
	for _, c := range test.changes {
		if c.State != discovery.LeftOut || c.Pod == "a" || c.Pod == "fresh" {
			t.Errorf("change %+v", c)
		}
	}
	test.changes = nil
	k.apply(pods(make([]discovery.Pod, discovery.MaxPods+1)...))
	test.expect("a.u")
	if len(test.changes) != 0 {
		t.Errorf("changes %+v", test.changes)
	}
	test.writeBase(baseText)

	// The next process begins with what this one wrote: b was no replica, a is one.
	k = test.start()
	a.Ready, b.Terminating = false, false
	b.Name = "c"
	test.changes = nil
	k.apply(pods(a, b))
	test.expect("-a.u c.u")
	if len(test.changes) != 2 || test.changes[0].State != discovery.Draining || test.changes[0].Before != discovery.Serving || test.changes[1].Pod != "c" {
		t.Errorf("changes after a restart: %+v", test.changes)
	}

	// A folder that is gone: the fault says so until it is back, and conditions are tried again.
	testkit.NoError(t, os.Rename(test.file.Path, test.file.Path+".kept"))
	dir := filepath.Dir(test.file.Path)
	k.cfg.file.Path = filepath.Join(dir, "missing", "fleet.yaml")
	k.apply(pods(b))
	if s := k.status(time.Now()); len(s.Faults) != 1 || !strings.Contains(s.Faults[0], "not written") {
		t.Errorf("faults %q", s.Faults)
	}
	test.conditions = nil
	k.repeat()
	expectConditions("c Serving")
	testkit.NoError(t, os.Mkdir(filepath.Join(dir, "missing"), 0o700))
	k.repeat()
	if s := k.status(time.Now()); len(s.Faults) != 0 || s.Replicas != 1 {
		t.Errorf("status %+v", s)
	}
}

func TestKeeperWithoutPods(t *testing.T) {
	test := newKeeperTest(t)
	test.faults = []string{"watch of pods: connection refused"}
	k := test.start()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	scraped, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	own, err := daemon.New(t.Context(), daemon.Config{Log: slog.New(slog.DiscardHandler)})
	testkit.NoError(t, err)
	t.Cleanup(own.Close)
	testkit.Run(t, func(ctx context.Context) error {
		return statusServers{admin: l, metrics: scraped, daemon: own}.serve(ctx, k)
	})
	get := func(path string) (int, string) {
		t.Helper()
		r, err := http.Get("http://" + l.Addr().String() + path)
		testkit.NoError(t, err)
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		testkit.NoError(t, err)
		return r.StatusCode, string(text)
	}
	k.apply(pods(discovery.Pod{Name: "a", IP: "127.0.0.2"}))
	if code, text := get("/readyz"); code != 503 || !strings.Contains(text, "connection refused") || !strings.Contains(text, "the Pod is not ready") {
		t.Errorf("readyz: %d %s", code, text)
	}
	if _, err := os.Stat(test.file.Path); err == nil {
		t.Error("a fleet file without replicas was written")
	}
	k.apply(pods(discovery.Pod{Name: "a", IP: "127.0.0.2", Ready: true}, discovery.Pod{Name: "b"}))
	if code, text := get("/readyz"); code != 200 {
		t.Errorf("readyz: %d %s", code, text)
	}
	_, text := get("/status")
	var s status
	testkit.NoError(t, json.Unmarshal([]byte(text), &s))
	if s.Replicas != 1 || len(s.Pods) != 2 || s.Pods[0] != (podStatus{"a", "a.u", "serving", ""}) || s.Pods[1].State != "left out" || s.WrittenAt == nil {
		t.Errorf("status %s", text)
	}
	_, text = get("/metrics")
	for _, want := range []string{`cascade_discovery_pods{state="serving"} 1`, `cascade_discovery_pods{state="left_out"} 1`, "cascade_discovery_faults 1", "cascade_discovery_writes_total 1"} {
		if !strings.Contains(text, want) {
			t.Errorf("metrics lack %s:\n%s", want, text)
		}
	}
	// The address for scrapers has the metrics alone.
	if text := getText(t, "http://"+scraped.Addr().String()+"/metrics"); !strings.Contains(text, "cascade_discovery_faults 1") {
		t.Errorf("metrics: %s", text)
	}
	if text := getText(t, "http://"+scraped.Addr().String()+"/status"); strings.Contains(text, "pods") {
		t.Errorf("the metrics' address serves /status: %s", text)
	}
	r, err := http.NewRequest("GET", "http://"+l.Addr().String()+"/status", nil)
	testkit.NoError(t, err)
	r.Host = "evil.example"
	answer, err := http.DefaultClient.Do(r)
	testkit.NoError(t, err)
	answer.Body.Close()
	if answer.StatusCode < 400 {
		t.Errorf("another host name: %d", answer.StatusCode)
	}
}

// TestDiscoverMetricsAccess: off loopback metrics are served over TLS, by the certificate of the base file, or not at all.
func TestDiscoverMetricsAccess(t *testing.T) {
	test := newKeeperTest(t)
	d := &discoverFlags{file: test.file, metrics: "127.0.0.1:0"}
	own, err := d.newDaemon(t.Context(), slog.New(slog.DiscardHandler))
	testkit.NoError(t, err)
	defer own.Close()
	if own.Certs != nil {
		t.Errorf("without tls: %+v", own.Certs)
	}
	test.writeBase(baseText + "tls: {cert: c.pem, key: k.pem, ca: ca.pem, trust_domain: fleet.test}\n")
	if _, err = d.newDaemon(t.Context(), slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), filepath.Dir(test.file.Base)) {
		t.Errorf("without the files of tls: %v", err)
	}
}
