package processes

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/envoytest"
)

// profile is the cost of the engine: a millisecond per token.
const profile = `{"name": "quick", "source": "made up for tests", "unit": "seconds", "d0": 0.001, "d1": 0, "d2": 1e-9, "d3": 0, "d4": 0,
"kappa": 0, "kv_bytes_per_token": 131072, "kv_tokens": 65536, "max_batch": 64, "ranks": 1, "fit_error": {"p50": 0, "p90": 0, "points": 0}}`

// attackedFleet is a fleet behind the embedded proxy and Envoy at once.
type attackedFleet struct {
	t       testing.TB
	engines []*guardedEngine           // of the replicas r0, r1, …
	daemons map[string]*harness.Daemon // control, front (the migrator of r0), front1, … and proxy
	envoy   *envoytest.Process
	ports   map[string]string // addresses by the name of the port in the scripts
	http    *http.Client
}

// newAttackedFleet runs a fleet of so many replicas until the test ends, and returns once both data planes serve.
func newAttackedFleet(t testing.TB, replicas int) *attackedFleet {
	t.Helper()
	envoytest.Binary(t)
	dir, err := os.MkdirTemp("", "attack")
	testkit.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	a := testkit.Addresses(t, 8+3*(replicas-1))
	f := &attackedFleet{
		t: t, http: harness.NewHTTP(), daemons: map[string]*harness.Daemon{},
		ports: map[string]string{
			"xds": a[0], "admin": a[1], "envoy": a[2], "proxy": a[3], "front": a[4], "peer": "@cascade-peer/" + a[5], "front-admin": a[6], "proxy-admin": a[7],
		},
	}
	t.Cleanup(f.http.CloseIdleConnections)
	file := config.Fleet{
		Models:  []config.Model{{Name: llm, Context: 16384, Profile: "quick.json"}},
		Control: config.Control{Listen: a[0], Admin: a[1], Socket: filepath.Join(dir, "s")},
		Proxy:   config.Proxy{Listen: a[2], Admin: a[7], Nodes: []string{"proxy", "envoy"}},
		Planner: config.Planner{Period: time.Hour},
	}
	for i := range replicas {
		id := fmt.Sprint("r", i)
		ports := a[4:7]
		if i > 0 {
			ports = a[5+3*i:]
		}
		file.Replicas = append(file.Replicas, config.Replica{
			ID: id, Address: ports[0], Peer: ports[1], Admin: ports[2], Engine: f.startEngine(filepath.Join(dir, id)), Blocks: id,
		})
	}
	testkit.NoError(t, os.WriteFile(filepath.Join(dir, "quick.json"), []byte(profile), 0o600))
	path := filepath.Join(dir, "fleet.yaml")
	testkit.NoError(t, os.WriteFile(path, testkit.Must(yaml.Marshal(file)), 0o600))

	start := func(args ...string) *harness.Daemon {
		return harness.Command{Binary: cascade, Args: args}.Start(t)
	}
	f.daemons["control"] = start("control", "-c", path)
	f.daemons["control"].WaitForLog("control plane of")
	for i := range replicas {
		name := strings.TrimSuffix(fmt.Sprint("front", i), "0")
		f.daemons[name] = start("migrator", "-c", path, "--replica", fmt.Sprint("r", i), "--log", "info", "--runtime-dir", filepath.Join(dir, "run"))
		f.daemons[name].WaitForLog("migrator of r.*: .*reports to")
	}
	f.daemons["proxy"] = start("proxy", "-c", path, "--node-id", "proxy", "--listen", a[3])
	bootstrap := harness.Command{Binary: cascade, Args: []string{"envoy-bootstrap", "-c", path, "--node-id", "envoy", "--admin", "127.0.0.1:0"}}
	f.envoy = envoytest.Start(t, envoytest.Config{Bootstrap: bootstrap.Output(t)})
	f.waitUntilServing()
	f.ports["kv"] = f.kvPort()
	return f
}

// startEngine runs another engine, with its sockets in dir, and returns its URL.
func (f *attackedFleet) startEngine(dir string) string {
	f.t.Helper()
	ec := emulator.Config{Model: llm, Context: 16384, Speed: 1000, Blocks: dir}
	testkit.NoError(f.t, json.Unmarshal([]byte(profile), &ec.Profile))
	engine, err := emulator.New(ec)
	testkit.NoError(f.t, err)
	testkit.Run(f.t, engine.Run)
	e := &guardedEngine{emulator: engine.Handler()}
	f.engines = append(f.engines, e)
	server := httptest.NewServer(e)
	f.t.Cleanup(server.Close)
	return server.URL
}

// waitUntilServing waits until every replica is healthy, and a client is served through each data plane.
func (f *attackedFleet) waitUntilServing() {
	f.t.Helper()
	testkit.WaitFor(f.t, "the replicas are healthy", func() bool {
		s, err := f.status(f.t.Context())
		for i := range f.engines {
			if err != nil || harness.Find(s, fmt.Sprint("r", i)).Weight == 0 {
				return false
			}
		}
		return true
	})
	for _, port := range []string{"front", "proxy", "envoy"} {
		testkit.WaitFor(f.t, port+" serves", func() bool { return f.served(port) == nil })
	}
}

// kvPort returns the port of the KV transport: the listener that the fleet file does not name.
func (f *attackedFleet) kvPort() string {
	f.t.Helper()
	named := []string{f.ports["front"], f.ports["peer"], f.ports["front-admin"]}
	for _, l := range f.daemons["front"].Listeners() {
		if !slices.Contains(named, l) {
			return l
		}
	}
	f.t.Fatalf("the migrator listens on %s only", strings.Join(f.daemons["front"].Listeners(), " "))
	return ""
}
