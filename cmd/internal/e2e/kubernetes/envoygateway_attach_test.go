package kubernetes

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/certs/devca"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/store"
)

// gatewaySteady is the cost of the engines: 20 ms per token.
var gatewaySteady = steadyProfile(0.02)

// gatewayFleet is the fleet file: three replicas behind the gateway, and one engine that the gateway's own route leads to. No
// plan is made but the first and those of the test.
const gatewayFleet = `
speed: 4
state: state
models: [{name: m, context: 16384, profile: steady.json}]
replicas:
- {id: r0, address: "127.0.0.1:9000", peer: "127.0.0.1:9100", engine: "http://127.0.0.1:8000"}
- {id: r1, address: "127.0.0.1:9001", peer: "127.0.0.1:9101", engine: "http://127.0.0.1:8001"}
- {id: r2, address: "127.0.0.1:9002", peer: "127.0.0.1:9102", engine: "http://127.0.0.1:8002"}
control: {listen: "127.0.0.1:28000", admin: "127.0.0.1:28001"}
proxy: {listen: "127.0.0.1:28002", nodes: ["default-eg-*"]}
planner: {period: 1h}
`

const theirs = `
speed: 4
models: [{name: m, context: 16384, profile: steady.json}]
replicas: [{id: theirs, address: "127.0.0.1:9009", peer: "127.0.0.1:9109", engine: "http://127.0.0.1:8009"}]
`

// ownGateway is a Gateway with a route of its own.
const ownGateway = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: eg, namespace: default}
spec:
  gatewayClassName: ` + gatewayClass + `
  listeners:
  - {name: http, protocol: HTTP, port: 8888}
  - {name: https, protocol: HTTPS, port: 8443, tls: {certificateRefs: [{name: own}]}}
---
apiVersion: v1
kind: Secret
type: kubernetes.io/tls
metadata: {name: own, namespace: default}
data: {tls.crt: %s, tls.key: %s}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: own, namespace: default}
spec:
  parentRefs: [{name: eg}]
  rules: [{backendRefs: [{group: gateway.envoyproxy.io, kind: Backend, name: own}]}]
---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: Backend
metadata: {name: own, namespace: default}
spec: {endpoints: [{ip: {address: 127.0.0.1, port: 8009}}]}
`

// attached is a Cascade fleet beside an Envoy Gateway.
type attached struct {
	*harness.Clients
	store   *store.Store
	gateway *envoyGateway
}

// TestAttachEnvoyGateway runs the object of "cascade attach eg" in a real Envoy Gateway, under load: its Envoy
// routes by its own route, then by length to Cascade's replicas, a boundary moves without Envoy Gateway, and without the object
// the gateway serves by its own route again, also without Cascade. No request fails. It is done to a listener without
// TLS, and then to one with TLS, after which Cascade ends.
func TestAttachEnvoyGateway(t *testing.T) {
	testkit.SkipSlow(t)
	testkit.SkipUnderRace(t) // it tests other processes
	envoyGatewayBinary(t)
	envoytest.Binary(t)
	if !harness.RunIsolated(t, harness.Variable+"="+cascade) {
		return
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"steady.json": gatewaySteady, "fleet.yaml": gatewayFleet, "theirs.yaml": theirs} {
		testkit.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	start := func(args ...string) *harness.Daemon {
		return harness.Command{Binary: cascade, Args: args}.Start(t)
	}
	start("engine", "-c", filepath.Join(dir, "theirs.yaml"), "--replica", "theirs").WaitForLog("emulating")
	up := start("up", "-c", filepath.Join(dir, "fleet.yaml"), "--native")
	up.WaitForLog("serve m on")

	f := &attached{
		Clients: newClients(t, gatewaySteady, "http://127.0.0.1:8888", "http://127.0.0.1:28001"),
		store:   store.New(testkit.Must(store.NewFile(filepath.Join(dir, "state")))),
	}
	f.HTTP.Transport.(*http.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true} // the gateway's certificate has no host name
	authority := testkit.Must(devca.New("example.org", time.Now()))
	testkit.NoError(t, authority.Issue(dir, testkit.Must(identity.New("example.org", identity.Operator, "gateway")), nil, time.Now()))
	encoded := func(name string) string {
		return base64.StdEncoding.EncodeToString(testkit.Must(os.ReadFile(filepath.Join(dir, name))))
	}
	f.gateway = startEnvoyGateway(t, fmt.Sprintf(ownGateway, encoded(devca.Cert), encoded(devca.Key)))
	load := f.attachUnderLoad("http", "http://127.0.0.1:8888", 500, 250, 750)
	load.Stop()
	load.Report()
	f.gateway.WaitForLog(`EnvoyPatchPolicy[\s\S]*Patches have been successfully applied`)
	load = f.attachUnderLoad("https", "https://127.0.0.1:8443", 600, 300)
	up.Stop()
	load.WaitForRequests(20)
	load.Stop()
	load.Report()
	f.gateway.Stop()
}

// attachUnderLoad attaches a listener of the gateway, moves a boundary to each of the boundaries, in tokens, and detaches the listener, under a
// load, which it returns.
func (f *attached) attachUnderLoad(section, url string, boundaries ...policies.Tokens) *harness.Load {
	f.T.Helper()
	f.DataPlane = url
	f.WaitForRoute("the gateway's own route", 400, "")
	load := f.NewLoad(harness.LoadConfig{Workers: 3, Body: func(worker int, rng *rand.Rand) []byte {
		return harness.Prompt(1+worker, []int{400, 2000, 4000}[rng.IntN(3)], 20)
	}})
	began := time.Now()
	f.attach(section)
	f.WaitForRoute("a plan", 400, "s0")
	f.T.Logf("%s: attached after %v", section, time.Since(began).Round(time.Millisecond))

	for _, boundary := range boundaries { // the gateway has no part in any of them
		began = time.Now()
		f.plan(boundary)
		f.T.Logf("%s: boundary %d: in force everywhere after %v", section, boundary, time.Since(began).Round(time.Millisecond))
		at := 4 * int(boundary) // four bytes per token, by content-length
		for size, want := range map[int]string{at - 1: "s0", at: "s1"} {
			if stage, err := f.StageOf(size); stage != want || err != nil {
				f.T.Errorf("%s: boundary %d: a body of %d bytes: stage %q, %v, want %s", section, boundary, size, stage, err, want)
			}
		}
		load.WaitForRequests(20)
	}

	f.gateway.Delete("attach")
	f.WaitForRoute("the gateway's own route again", 400, "")
	// A connection from before may carry one more request by Cascade's routes, whose answer closes it. That request is
	// the next one after an answer that had begun; a connection without requests has it still before it.
	load.WaitForAll()
	f.HTTP.CloseIdleConnections()
	load.WaitForAll()
	return load
}

// attach applies what the command prints for a listener of the gateway.
func (f *attached) attach(section string) {
	f.T.Helper()
	f.gateway.Apply("attach", harness.Command{Binary: cascade, Args: []string{"attach", "eg", "--gateway", "default/eg", "--section", section, "--control", "127.0.0.1:28000"}}.Output(f.T))
}

// plan stores a plan of two stages as a planner does, and waits until the gateway's Envoy has it, and no older one.
func (f *attached) plan(boundary policies.Tokens) {
	f.T.Helper()
	epoch := harness.StorePlan(f.T, f.store,
		policies.Stage{Low: 0, High: boundary, Replicas: []policies.ReplicaID{"r0"}},
		policies.Stage{Low: boundary, High: policies.Unbounded, Replicas: []policies.ReplicaID{"r1", "r2"}})
	f.WaitFor(fmt.Sprintf("epoch %d", epoch), func() bool {
		text, err := f.Get(f.Admin + "/status")
		var s control.Status
		if err != nil || json.Unmarshal([]byte(text), &s) != nil || s.PublishedEpoch != epoch || s.Phase != "idle" {
			return false
		}
		for _, n := range s.Nodes {
			if matched, _ := filepath.Match("default-eg-*", n.ID); matched {
				return n.Connected && n.Current && n.Epoch == epoch
			}
		}
		return false
	})
}
