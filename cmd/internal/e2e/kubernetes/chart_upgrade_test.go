package kubernetes

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// formerChart is the chart of commit 99cdf35b, as "helm package" packs it.
const formerChart = "testdata/upgrade/cascade-99cdf35b.tgz"

// formerValues are the files of testdata/values that the former chart knows, with "" for none.
var formerValues = []string{"", "discovery", "epp", "ha", "minimal", "state"}

// release runs Helm on an API server.
func (a apiServer) release(t *testing.T, args ...string) {
	t.Helper()
	if out, err := helm(t, append(args, "--namespace", chartNamespace, "--kubeconfig", a.kubeconfig)...); err != nil {
		t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// TestUpgrade has a real API server accept the upgrade from the former chart to the present one, with the same
// values; objects have fields that cannot change. Then it plays one under load, see upgradeUnderLoad.
func TestUpgrade(t *testing.T) {
	testkit.SkipSlow(t)
	a := startAPIServer(t)
	t.Run("objects", func(t *testing.T) { upgradeObjects(t, a) })
	t.Run("under load", func(t *testing.T) { upgradeUnderLoad(t, a) })
}

// upgradeObjects upgrades releases, and rolls them back.
func upgradeObjects(t *testing.T, a apiServer) {
	for _, name := range formerValues {
		var values []string
		if name != "" {
			values = []string{"--values", "testdata/values/" + name + ".yaml"}
		}
		a.release(t, append([]string{"install", "cascade", formerChart}, values...)...)
		a.release(t, append([]string{"upgrade", "cascade", chart}, values...)...)
		a.release(t, "rollback", "cascade", "1")
		a.release(t, "uninstall", "cascade")
	}
	// What an upgrade cannot change is refused: the check would find it.
	a.release(t, "install", "cascade", formerChart)
	_, err := helm(t, "upgrade", "cascade", chart, "--set", "controlPlane.state.persistence.size=2Gi", "--namespace", chartNamespace, "--kubeconfig", a.kubeconfig)
	testkit.WantError(t, err, "updates to statefulset spec for fields other than")
	a.release(t, "uninstall", "cascade")
}

// upgradeUnderLoad runs the Pods of a release of the former chart as processes, behind an embedded proxy, and upgrades the
// release under load. The StatefulSet's Pod is replaced as its controller does it: the old process gets SIGTERM,
// and the new one starts when it has ended, with the arguments and files of the upgraded objects. No request fails, and
// streams that began before it end whole after it.
func upgradeUnderLoad(t *testing.T, a apiServer) {
	sidecar := podSpec(findObject(t, kustomize(t, "deploy/kubernetes/example"), "Deployment", "llama"))
	pods := newPods(t, []string{"cascade-0", "llama-a", "llama-b", "edge"}, []object{nil, sidecar, sidecar, nil})
	plane, engines, edge := pods[0], pods[1:3], pods[3]
	values := filepath.Join(t.TempDir(), "values.yaml")
	testkit.NoError(t, os.WriteFile(values, fmt.Appendf(nil, `fleet:
  models: [{name: %s, context: 16384, profile: steady.json}]
  proxy: {listen: "%s:8080", admin: "127.0.0.1:8081"}
fleetFiles: {steady.json: %q}
`, harness.Model, edge.own, chartSteady), 0o600))
	all := []string{"--values", values, "--values", listReplicas(t, engines)}
	a.release(t, append([]string{"install", "cascade", formerChart}, all...)...)

	certificates := issueCertificates(t, "--control", "cascade-0", "--migrator", engines[0].id(), "--migrator", engines[1].id(), "--proxy", "edge")
	stored := func(kind, name string) object { t.Helper(); return testkit.Must(a.get(kind, name)) }
	startPlane := func() *harness.Daemon {
		t.Helper()
		plane.template = podSpec(stored("apps/v1 StatefulSet", "cascade"))
		certificates.mount(t, plane, "cascade-0", stored("v1 ConfigMap", "cascade"))
		return plane.run(t, plane.container(t, "containers", "control"))
	}
	old := startPlane()
	for _, p := range engines {
		certificates.mount(t, p, p.id(), stored("v1 ConfigMap", "cascade-migrator"))
		p.runReplica(t, plane)
	}
	certificates.mount(t, edge, "edge", stored("v1 ConfigMap", "cascade"))
	harness.Command{Binary: cascade, Args: []string{"proxy", "-c", filepath.Join(edge.dir, "etc", "fleet", "fleet.yaml"), "--node-id", "edge", "--runtime-dir", filepath.Join(edge.dir, "run", "proxy")},
		Env: plane.environment()}.Start(t)

	var profile cost.Profile
	testkit.NoError(t, json.Unmarshal([]byte(chartSteady), &profile))
	clients := &harness.Clients{
		T: t, DataPlane: "http://" + edge.own + ":8080", Admin: "http://" + plane.own + ":18001", HTTP: harness.NewHTTP(),
		Engine: emulator.Config{Model: harness.Model, Context: 16384, Profile: profile},
	}
	t.Cleanup(clients.HTTP.CloseIdleConnections)
	served := func() bool {
		status, err := clients.Get(clients.Admin + "/status")
		_, noProxy := clients.Get("http://" + edge.own + ":8081/readyz")
		return err == nil && noProxy == nil && strings.Count(status, `"health": "healthy"`) == 2
	}
	clients.WaitFor("the proxy to serve both replicas", served)
	load := clients.NewLoad(harness.LoadConfig{Workers: 6, Body: func(worker int, rng *rand.Rand) []byte {
		return harness.Prompt(1+worker, []int{300, 1000, 4000}[rng.IntN(3)], 100)
	}})
	load.WaitForRequests(10)
	var streams []*harness.Stream
	for seed := range 4 {
		streams = append(streams, clients.Stream(harness.Prompt(100+seed, 400, 1500))) // 15 s
	}
	clients.WaitForEvents(streams, 2)

	before := plane.template
	a.release(t, append([]string{"upgrade", "cascade", chart, "--set", "controlPlane.extraArgs={--log=info}"}, all...)...)
	load.WaitForRequests(10)
	old.Stop()
	stopped := time.Now()
	load.WaitForRequests(10)
	next := startPlane()
	if reflect.DeepEqual(before, plane.template) {
		t.Error("the upgrade does not replace the Pod: nothing was tested")
	}
	next.WaitForLog("level=INFO") // the arguments are the new ones
	clients.WaitFor("the proxy to serve both replicas, by the new control plane", served)
	t.Logf("the control plane was away for %v", time.Since(stopped).Round(time.Millisecond))
	clients.WaitForGrowth(streams)
	load.WaitForRequests(10)
	for _, s := range streams {
		s.Wait()
		testkit.NoError(t, s.Whole())
	}
	load.Stop()
	load.Report()
}
