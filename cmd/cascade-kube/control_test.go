package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/planrepair"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/kubetest"
	"github.com/cascadeinfer/cascade/xds/store"
)

// writeFiles writes a fleet file with its state in Kubernetes, and a kubeconfig for an API server.
func writeFiles(t *testing.T, url string) (fleet, kubeconfig string) {
	t.Helper()
	dir := t.TempDir()
	fleet, kubeconfig = filepath.Join(dir, "fleet.yaml"), filepath.Join(dir, "kubeconfig")
	testkit.NoError(t, os.WriteFile(fleet, []byte(`state: kubernetes://cascade/fleet-a
control: {listen: "127.0.0.1:0", admin: "127.0.0.1:0"}
models: [{name: m, context: 4096, profile: h200-llama-3.1-8b}]
replicas:
- {id: r0, address: "127.0.0.1:9000", peer: "127.0.0.1:9100", engine: "http://127.0.0.1:8000"}
`), 0o600))
	testkit.NoError(t, os.WriteFile(kubeconfig, []byte(`apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "`+url+`"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: t}}]
`), 0o600))
	return fleet, kubeconfig
}

// metricsAddress finds where a daemon listens for scrapers of its metrics, in its log.
var metricsAddress = regexp.MustCompile(`listening for scrapers of metrics".* address=([0-9.:]+)`)

// TestControl runs a control plane twice: it keeps its plan in Kubernetes, and stops without an error.
func TestControl(t *testing.T) {
	server := kubetest.Simulate(t)
	fleet, kubeconfig := writeFiles(t, server.URL)
	for range 2 {
		ctx, stop := context.WithCancel(t.Context())
		var log testkit.Log
		code := make(chan int, 1)
		go func() {
			code <- run(ctx, []string{"control", "-c", fleet, "--kubeconfig", kubeconfig, "--log", "info", "--metrics", "127.0.0.1:0"}, &log, &log)
		}()
		testkit.WaitFor(t, "the plan is stored", func() bool {
			return strings.Contains(log.String(), "control plane of 1 replicas") && len(server.Paths("/namespaces/cascade/leases/fleet-a")) == 1 && server.Watches() == 1
		})
		address := testkit.WaitForValue(t, "the address of metrics", func() []string { return metricsAddress.FindStringSubmatch(log.String()) }, func(a []string) bool { return a != nil })
		testkit.WaitForValue(t, "metrics of the planner", func() string { return getText(t, "http://"+address[1]+"/metrics") }, func(text string) bool {
			return strings.Contains(text, "\ncascade_planner")
		})
		stop()
		if got := <-code; got != 0 {
			t.Errorf("exit code %d: %s", got, log.String())
		}
	}
	plans := server.Paths("/configmaps/fleet-a-parts-")
	if len(plans) != 1 {
		t.Errorf("a control plane that is started again has stored another plan: %q", plans)
	}
}

// getText returns what a URL answers.
func getText(t *testing.T, url string) string {
	t.Helper()
	client := http.Client{Timeout: testkit.WaitTimeout()}
	answer, err := client.Get(url)
	testkit.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	testkit.NoError(t, err)
	return string(text)
}

// TestControlErrors checks what a control plane says that cannot start.
func TestControlErrors(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	fleet, kubeconfig := writeFiles(t, "http://127.0.0.1:1")
	for line, want := range map[string]string{
		"control":             "name a fleet file with -c",
		"control -c " + fleet: "name a file with --kubeconfig",
		"control -c " + fleet + " --kubeconfig none": "--kubeconfig none",
		"control -c " + kubeconfig:                   kubeconfig,
		"control x":                                  `unexpected argument "x"`,
		"control -c " + fleet + " --metrics x":       "--metrics: ",
	} {
		var log testkit.Log
		if code := run(t.Context(), strings.Fields(line), &log, &log); code == 0 || !strings.Contains(log.String(), want) {
			t.Errorf("%q: exit code %d: %s, want %q", line, code, log.String(), want)
		}
	}
}

// TestRepair damages the Lease, so that no plan can be read, and rebuilds it from what a migrator
// follows.
func TestRepair(t *testing.T) {
	server := kubetest.Simulate(t)
	fleet, kubeconfig := writeFiles(t, server.URL)
	client, err := openKubernetes("cascade", "fleet-a", kubeconfig)
	testkit.NoError(t, err)
	defer client.Close()
	_, err = client.CompareAndSwap(t.Context(), "", store.Object{Epoch: 3})
	testkit.NoError(t, err)
	newest := policies.OneStagePlan("m", []policies.ReplicaID{"r0"})
	newest.Epoch = 9
	migrator := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/plan" {
			_ = json.NewEncoder(w).Encode(planrepair.Followed{Plans: []policies.Plan{newest}})
		}
	}))
	defer migrator.Close()
	repair := func() (string, int) {
		var out testkit.Log
		code := run(t.Context(), []string{"control", "--repair", "-c", fleet, "--kubeconfig", kubeconfig, "--from", migrator.URL}, &out, &out)
		return out.String(), code
	}
	if text, code := repair(); code != 1 || !strings.Contains(text, "nothing to repair") {
		t.Errorf("a good plan: %d %s", code, text)
	}
	server.Edit(server.Paths("/leases/")[0], func(lease map[string]any) map[string]any {
		lease["metadata"].(map[string]any)["annotations"].(map[string]any)["cascade/root"] = "damaged"
		return lease
	})
	if text, code := repair(); code != 0 || !strings.Contains(text, "m: epoch 9, 1 stage") || !strings.Contains(text, "kept as corrupt/") {
		t.Errorf("%d %s", code, text)
	}
	if u := <-client.Watch(t.Context()); u.Err != nil || u.Object.Epoch != 9 || len(u.Object.Plans) != 1 {
		t.Errorf("%+v", u)
	}
}
