package attack

import (
	"encoding/json"
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
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/clienttest"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/daemontest"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/loopback"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/xds/envoytest"
)

// profile is the cost of the engine: a millisecond per token.
const profile = `{"name": "quick", "source": "made up for tests", "unit": "seconds", "d0": 0.001, "d1": 0, "d2": 1e-9, "d3": 0, "d4": 0,
"kappa": 0, "kv_bytes_per_token": 131072, "kv_tokens": 65536, "max_batch": 64, "ranks": 1, "fit_error": {"p50": 0, "p90": 0, "points": 0}}`

// fleet is a fleet of one replica behind the embedded proxy and Envoy at once.
type fleet struct {
	t       testing.TB
	engine  *guardedEngine
	daemons map[string]*daemontest.Daemon // control, front (the migrator) and proxy
	ports   map[string]string             // addresses by the name of the port in the scripts
	http    *http.Client
}

// newFleet runs a fleet until the test ends, and returns once both data planes serve.
func newFleet(t testing.TB) *fleet {
	t.Helper()
	envoytest.Binary(t)
	dir, err := os.MkdirTemp("", "attack")
	testkit.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	a := loopback.Addresses(t, 8)
	f := &fleet{
		t: t, engine: &guardedEngine{}, http: clienttest.NewHTTP(), daemons: map[string]*daemontest.Daemon{},
		ports: map[string]string{
			"xds": a[0], "admin": a[1], "envoy": a[2], "proxy": a[3], "front": a[4], "peer": a[5], "front-admin": a[6], "proxy-admin": a[7],
		},
	}
	t.Cleanup(f.http.CloseIdleConnections)
	ec := emulator.Config{Model: model, Context: 16384, Speed: 1000, Blocks: filepath.Join(dir, "r0")}
	testkit.NoError(t, json.Unmarshal([]byte(profile), &ec.Profile))
	engine, err := emulator.New(ec)
	testkit.NoError(t, err)
	testkit.Run(t, engine.Run)
	f.engine.emulator = engine.Handler()
	server := httptest.NewServer(f.engine)
	t.Cleanup(server.Close)

	file := config.Fleet{
		Models:  []config.Model{{Name: model, Context: 16384, Profile: "quick.json"}},
		Control: config.Control{Listen: a[0], Admin: a[1]},
		Proxy:   config.Proxy{Listen: a[2], Admin: a[7], Nodes: []string{"proxy", "envoy"}},
		Planner: config.Planner{Period: time.Hour},
		Replicas: []config.Replica{
			{ID: "r0", Address: a[4], Peer: a[5], Admin: a[6], Engine: server.URL, Blocks: "r0"},
		},
	}
	testkit.NoError(t, os.WriteFile(filepath.Join(dir, "quick.json"), []byte(profile), 0o600))
	path := filepath.Join(dir, "fleet.yaml")
	testkit.NoError(t, os.WriteFile(path, testkit.Must(yaml.Marshal(file)), 0o600))

	start := func(args ...string) *daemontest.Daemon {
		return daemontest.Command{Binary: binary, Args: args}.Start(t)
	}
	f.daemons["control"] = start("control", "-c", path)
	f.daemons["control"].WaitForLog("control plane of")
	f.daemons["front"] = start("migrator", "-c", path, "--replica", "r0", "--log", "info", "--runtime-dir", filepath.Join(dir, "run"))
	f.daemons["front"].WaitForLog("migrator of r0: .*reports to")
	f.daemons["proxy"] = start("proxy", "-c", path, "--node-id", "proxy", "--listen", a[3])
	bootstrap := daemontest.Command{Binary: binary, Args: []string{"envoy-bootstrap", "-c", path, "--node-id", "envoy", "--admin", "127.0.0.1:0"}}
	envoytest.Start(t, envoytest.Config{Bootstrap: bootstrap.Output(t)})
	f.waitUntilServing()
	f.ports["kv"] = f.kvPort()
	return f
}

// waitUntilServing waits until a client is served through each data plane.
func (f *fleet) waitUntilServing() {
	f.t.Helper()
	testkit.WaitFor(f.t, "the replica is healthy", func() bool {
		s, err := f.status(f.t.Context())
		return err == nil && clienttest.Find(s, "r0").Weight > 0
	})
	for _, port := range []string{"front", "proxy", "envoy"} {
		testkit.WaitFor(f.t, port+" serves", func() bool { return f.served(port) == nil })
	}
}

// kvPort returns the port of the KV transport: the listener that the fleet file does not name.
func (f *fleet) kvPort() string {
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
