package kubernetes

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/clustertest"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/kubetest"
	"github.com/cascadeinfer/cascade/xds/store"
	storekubernetes "github.com/cascadeinfer/cascade/xds/store/kubernetes"
)

// edge is the fleet file for the gateway's Envoy, as deploy/kubernetes has it.
const edge = `
models: [{name: m, context: 16384, profile: h200-llama-3.1-8b}]
replicas: [{id: none, address: "127.0.0.1:9000", peer: "127.0.0.1:9100", engine: "http://127.0.0.1:8000"}]
tls: {cert: /etc/cascade/tls/tls.crt, key: /etc/cascade/tls/tls.key, ca: /etc/cascade/tls/ca.crt, trust_domain: cluster.local}
`

// gatewayName is the Gateway; its own route leads to the Service of the engines.
const gatewayName = namespace + "/eg"

const lifeGateway = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: eg, namespace: llm}
spec: {gatewayClassName: ` + gatewayClass + `, listeners: [{name: http, protocol: HTTP, port: 8888}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: own, namespace: llm}
spec:
  parentRefs: [{name: eg}]
  rules: [{backendRefs: [{group: gateway.envoyproxy.io, kind: Backend, name: own}]}]
---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: Backend
metadata: {name: own, namespace: llm}
spec: {endpoints: [{ip: {address: %s, port: 80}}]}
`

// gatewayNode is the node id of the Envoy that Envoy Gateway starts for the Gateway.
var gatewayNode = fmt.Sprintf("%s-%x", strings.ReplaceAll(gatewayName, "/", "-"), sha256.Sum256([]byte(gatewayName)))[:len(gatewayName)+9]

// wholeLife is a cluster under load, whose plans the test stores.
type wholeLife struct {
	*life
	load  *harness.Load
	store *store.Store
	table strings.Builder
}

// TestLife installs Cascade beside an Envoy Gateway, plans, moves a boundary, scales, deletes a Pod, upgrades engines and the
// control plane, and uninstalls, under load. No request fails in any step; it prints the table.
func TestLife(t *testing.T) {
	testkit.SkipSlow(t)
	testkit.SkipUnderRace(t) // it tests other processes
	envoyGatewayBinary(t)
	envoytest.Binary(t)
	kubetest.Binary(t)
	helmBinary(t)
	if !clustertest.Isolate(t, harness.Variable+"="+cascade) {
		return
	}
	l := &wholeLife{life: newLife(t)}
	chart := l.chart()

	// Before: engines with migrators, which need the chart to start, and a gateway that has a certificate.
	l.helm("install", "cascade", chart, "--values", l.values)
	l.deployEngines()
	l.scale(4)
	l.awaitReplicas(4)
	l.uninstall()
	state := testkit.Must(storekubernetes.New(storekubernetes.Config{REST: l.rest, Namespace: namespace, Name: "cascade"}))
	t.Cleanup(func() { state.Close() })
	l.store = store.New(state)
	tls := "/etc/cascade/tls" // in the copy that this test has of /etc
	testkit.NoError(t, os.MkdirAll(tls, 0o700))
	testkit.NoError(t, l.issue(testkit.Must(identity.New(trustDomain, identity.Proxy, gatewayNode)), nil, tls))
	service := testkit.Must(l.client.CoreV1().Services(namespace).Get(t.Context(), deployment, metav1.GetOptions{}))
	address := testkit.Must(l.network.Address())
	host := testkit.Must(l.network.Add(address)) // Envoy Gateway takes port 18000 of all addresses
	l.DataPlane = "http://" + address.String() + ":8888"
	gateway := startEnvoyGateway(t, fmt.Sprintf(lifeGateway, service.Spec.ClusterIP), host.Enter()...)
	l.WaitForRoute("the route of a short request", 400, "")

	fmt.Fprintf(&l.table, "| step | took | requests | of them streams | failed | then |\n|---|---|---|---|---|---|\n")
	l.load = l.NewLoad(harness.LoadConfig{
		Workers:  4,
		Body:     func(worker int, rng *rand.Rand) []byte { return body(1+worker, rng) },
		Streamed: func(n int) bool { return n%4 != 0 },
	})
	defer func() { t.Logf("the life of a fleet, under load:\n%s", &l.table) }()
	l.step("before: the gateway's own route", func() string { return "" })
	l.step("install: helm install", func() string {
		l.helm("install", "cascade", chart, "--values", l.values)
		return l.awaitReplicas(4)
	})
	l.step("install: attach the gateway", func() string {
		testkit.NoError(t, os.WriteFile(filepath.Join(l.dir, "edge.yaml"), []byte(edge), 0o600))
		gateway.Apply("attach", harness.Command{Binary: programs + "/cascade", Args: []string{
			"attach", "eg", "-c", filepath.Join(l.dir, "edge.yaml"), "--gateway", gatewayName, "--section", "http", "--control", "cascade.llm.svc:18000",
		}}.Output(t))
		l.WaitForRoute("the route of a short request", 400, "s0")
		return "the first plan: one stage"
	})
	l.step("plan: two stages", func() string { return l.plan(1000) })
	l.step("flip: another boundary", func() string { return l.plan(500) })
	l.step("scale from 4 Pods to 8, and plan", func() string {
		l.scale(8)
		l.awaitReplicas(8)
		planned := l.plan(500) // new replicas join stages without a plan: 3 and 5 in one run; this divides them evenly
		return l.awaitReplicas(8) + "; " + planned
	})
	l.step("scale from 8 Pods to 3", func() string { l.scale(3); return l.awaitReplicas(3) })
	l.step("delete a Pod", func() string {
		gone := l.engines()[0].Name
		l.deleteEngine(gone)
		l.WaitFor(gone+" is gone", func() bool {
			return !slices.ContainsFunc(l.engines(), func(p corev1.Pod) bool { return p.Name == gone })
		})
		return l.awaitReplicas(3)
	})
	l.step("upgrade: new Pods of engines", func() string {
		before := l.engines()
		l.annotate("1")
		l.WaitFor("Pods of the new template alone", func() bool {
			now := l.engines()
			return len(now) > 0 && !slices.ContainsFunc(now, func(p corev1.Pod) bool {
				return slices.ContainsFunc(before, func(old corev1.Pod) bool { return old.UID == p.UID })
			})
		})
		return l.awaitReplicas(3)
	})
	l.step("upgrade: helm upgrade", func() string {
		before := l.planes()
		l.helm("upgrade", "cascade", chart, "--values", l.values, "--set-string", "controlPlane.podAnnotations.upgraded=1")
		l.WaitFor("a new control plane", func() bool {
			now := l.planes()
			return len(now) == 1 && now[0].UID != "" && now[0].UID != before[0].UID
		})
		return l.awaitReplicas(3)
	})
	l.step("uninstall: detach the gateway", func() string {
		gateway.Delete("attach")
		l.WaitForRoute("the route of a short request", 400, "")
		return ""
	})
	l.step("uninstall: helm uninstall", func() string { l.uninstall(); return "" })
	l.load.Stop()
	l.load.Report()
	if errs := l.objects.Failures(); len(errs) > 0 {
		t.Errorf("containers failed: %v", errors.Join(errs...))
	}
}

// uninstall removes the chart, and the objects with the state as the page says.
func (l *wholeLife) uninstall() {
	l.T.Helper()
	l.helm("uninstall", "cascade")
	l.WaitFor("no control planes", func() bool { return len(l.planes()) == 0 })
	ctx, all := l.T.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=cascade-kube,app.kubernetes.io/instance=cascade"}
	testkit.NoError(l.T, errors.Join(
		l.client.CoordinationV1().Leases(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, all),
		l.client.CoreV1().ConfigMaps(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, all)))
	written := metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=cascade-kube"}
	leases := testkit.Must(l.client.CoordinationV1().Leases(namespace).List(ctx, written)).Items
	configs := testkit.Must(l.client.CoreV1().ConfigMaps(namespace).List(ctx, written)).Items
	secrets := testkit.Must(l.client.CoreV1().Secrets(namespace).List(ctx, written)).Items
	if len(leases)+len(configs)+len(secrets) > 0 {
		l.T.Errorf("%d Leases, %d ConfigMaps and %d Secrets of the state are left", len(leases), len(configs), len(secrets))
	}
}

// body returns a request of the load: most are short, some have long answers.
func body(seed int, rng *rand.Rand) []byte {
	output := 40
	if rng.IntN(6) == 0 {
		output = 600 // three seconds
	}
	return harness.Prompt(seed, []int{400, 1600, 3000, 6000}[rng.IntN(4)], output)
}

// step does something under load, and adds its row to the table.
func (l *wholeLife) step(name string, do func() string) {
	l.T.Helper()
	requests, streams := l.load.Counts()
	failed, began := len(l.load.Failures()), time.Now()
	note := do()
	took := time.Since(began)
	l.load.WaitForRequests(20)
	l.load.WaitForAll() // requests that began before this line are counted in the step
	r, s := l.load.Counts()
	f := l.load.Failures()
	fmt.Fprintf(&l.table, "| %s | %.1f s | %d | %d | %d | %s |\n", name, took.Seconds(), r-requests, s-streams, len(f)-failed, note)
	l.T.Logf("%s: %.1f s, %d requests, %d failed", name, took.Seconds(), r-requests, len(f)-failed)
	for _, err := range f[failed:] {
		l.T.Errorf("%s: %v", name, err)
	}
}

// plan stores a plan of two stages, as a planner does, waits until the gateway's Envoy has it and no older one, and sends
// requests at its boundary.
func (l *wholeLife) plan(boundary policies.Tokens) string {
	l.T.Helper()
	s, err := l.status(plane)
	testkit.NoError(l.T, err)
	var ids []policies.ReplicaID
	for _, r := range harness.Replicas(s) {
		ids = append(ids, r.ID)
	}
	slices.Sort(ids)
	half := len(ids) / 2
	began, epoch := time.Now(), harness.StorePlan(l.T, l.store,
		policies.Stage{Low: 0, High: boundary, Replicas: ids[:half]}, policies.Stage{Low: boundary, High: policies.Unbounded, Replicas: ids[half:]})
	l.WaitFor(fmt.Sprintf("epoch %d in the gateway", epoch), func() bool {
		s, err := l.status(plane)
		return err == nil && s.PublishedEpoch == epoch && s.Phase == "idle" && slices.ContainsFunc(s.Nodes, func(n control.Node) bool {
			return strings.HasSuffix(n.ID, gatewayNode) && n.Connected && n.Current && n.Epoch == epoch
		})
	})
	took := time.Since(began)
	bytes := 4 * int(boundary) // four a token, by content-length
	for size, want := range map[int]string{bytes - 1: "s0", bytes: "s1"} {
		if stage, err := l.StageOf(size); stage != want || err != nil {
			l.T.Errorf("boundary %d: a body of %d bytes: stage %q, %v, want %s", boundary, size, stage, err, want)
		}
	}
	return fmt.Sprintf("boundary at %d tokens, in force after %.1f s", boundary, took.Seconds())
}
