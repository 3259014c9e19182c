package processes

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/envoytest"
)

// attackedFleet is a fleet behind the embedded proxy and Envoy at once.
type attackedFleet struct {
	*fleet
	engines []*guardedEngine           // of the replicas r0, r1, …
	daemons map[string]*harness.Daemon // control, front (the migrator of r0), front1, … and proxy
	ports   map[string]string          // addresses by the name of the port in the scripts
}

// newAttackedFleet runs a fleet of so many replicas until the test ends, and returns once both data planes serve.
func newAttackedFleet(t testing.TB, replicas int) *attackedFleet {
	t.Helper()
	envoytest.Binary(t)
	a, f := testkit.Addresses(t, 2), new(attackedFleet)
	f.fleet = newFleet(t, setup{
		envoy: true, replicas: replicas, engine: f.startEngine, log: []string{},
		edit: func(c *config.Fleet) {
			c.Speed, c.Control.Socket, c.Proxy.Admin = 1, filepath.Join(t.TempDir(), "s"), a[0]
			c.Proxy.Nodes = append(c.Proxy.Nodes, "proxy")
		},
	})
	f.startProxy("--node-id", "proxy", "--listen", a[1])
	r := f.replicas[0]
	f.ports = map[string]string{
		"xds": f.file.Control.Listen, "admin": f.file.Control.Admin, "envoy": f.file.Proxy.Listen, "proxy": a[1], "proxy-admin": a[0],
		"front": r.Address, "peer": "@cascade-peer/" + r.Peer, "front-admin": r.Admin,
	}
	f.daemons = map[string]*harness.Daemon{"control": f.control, "proxy": f.proxy}
	for i, r := range f.replicas {
		f.daemons[strings.TrimSuffix(fmt.Sprint("front", i), "0")] = r.migrator
	}
	f.waitUntilServing()
	f.ports["kv"] = f.kvPort()
	return f
}

// startEngine runs a replica's engine, which takes hardly any time.
func (f *attackedFleet) startEngine(r *replica) {
	t := r.f.T
	ec := emulator.Config{Model: llm, Context: 16384, Speed: 1000, Blocks: r.f.path(r.Blocks)}
	testkit.NoError(t, json.Unmarshal([]byte(steady), &ec.Profile))
	engine := testkit.Must(emulator.New(ec))
	testkit.Run(t, engine.Run)
	e := &guardedEngine{emulator: engine.Handler()}
	f.engines = append(f.engines, e)
	server := httptest.NewUnstartedServer(e)
	server.Listener.Close()
	server.Listener = testkit.Must(net.Listen("tcp", strings.TrimPrefix(r.Engine, "http://")))
	server.Start()
	t.Cleanup(server.Close)
}

// waitUntilServing waits until every replica is healthy, and a client is served through each data plane.
func (f *attackedFleet) waitUntilServing() {
	f.T.Helper()
	for _, r := range f.replicas {
		f.AwaitServing(r.ID)
	}
	for _, port := range []string{"front", "proxy", "envoy"} {
		f.WaitFor(port+" serves", func() bool { return f.served(port) == nil })
	}
}

// kvPort returns the port of the KV transport: the listener that the fleet file does not name.
func (f *attackedFleet) kvPort() string {
	f.T.Helper()
	named := []string{f.ports["front"], f.ports["peer"], f.ports["front-admin"]}
	for _, l := range f.daemons["front"].Listeners() {
		if !slices.Contains(named, l) {
			return l
		}
	}
	f.T.Fatalf("the migrator listens on %s only", strings.Join(f.daemons["front"].Listeners(), " "))
	return ""
}
