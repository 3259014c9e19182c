package wiring

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/policies/identity"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/server"
)

// load reads a fleet file with further lines.
func load(t *testing.T, more string) Fleet {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	text := `models: [{name: m, context: 4096, profile: h200-llama-3.1-8b, batch: 8}]
replicas:
- {id: r0, address: "127.0.0.1:9000", peer: "127.0.0.1:9100", engine: "http://127.0.0.1:8000", tp: 2}
- {id: r1, address: "127.0.0.1:9001", peer: "127.0.0.1:9101", engine: "http://127.0.0.1:8001", tp: 2, drain: true}
` + more
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestExampleStartsControlPlane: the printed example is a whole fleet.
func TestExampleStartsControlPlane(t *testing.T) {
	f, err := config.Read(strings.NewReader(config.Example))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	w, err := Resolve(f, dir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := w.Control(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Models) != 1 || len(c.Replicas) != 4 || c.Store == nil || c.Counters == nil {
		t.Errorf("%+v", c)
	}
	if info, err := os.Stat(filepath.Join(dir, "state")); err != nil || !info.IsDir() {
		t.Errorf("the state directory: %v", err)
	}
}

// TestSpeedShrinksTimes: what the planner and the fronts measure in wall time
// shrinks with the engines' times.
func TestSpeedShrinksTimes(t *testing.T) {
	slow, fast := load(t, "planner: {window: 40s, iteration: 80ms}\n"), load(t, "speed: 4\nplanner: {window: 40s, iteration: 80ms}\n")
	r, err := fast.Replica("r0")
	if err != nil {
		t.Fatal(err)
	}
	if tau := fast.Frontend(r, nil).FlowTau; tau != 10*time.Second {
		t.Errorf("window %v", tau)
	}
	a, b := slow.Rules().Models[0], fast.Rules().Models[0]
	if b.Limits.Iteration != 0.02 || a.Limits.Iteration != 0.08 {
		t.Errorf("iteration %v and %v", a.Limits.Iteration, b.Limits.Iteration)
	}
	if ratio := a.Cost.D4 / b.Cost.D4; ratio < 3.999 || ratio > 4.001 {
		t.Errorf("cost shrinks by %v", ratio)
	}
}

func TestRegistry(t *testing.T) {
	f := load(t, "")
	list := f.Registry()
	if len(list) != 2 || list[0].Draining || !list[1].Draining || list[1].Peer != "127.0.0.1:9101" || list[0].Capacity.Batch != 8 {
		t.Errorf("%+v", list)
	}
	if _, err := f.Replica("r9"); err == nil || !strings.Contains(err.Error(), `["r0" "r1"]`) {
		t.Errorf("an unknown replica: %v", err)
	}
	if m, ok := f.Model("unknown"); ok {
		t.Errorf("an unknown model: %+v", m)
	}
}

// TestPathsAreRelativeToFile: TLS files, like state, lie beside the fleet file.
func TestPathsAreRelativeToFile(t *testing.T) {
	f := load(t, "tls: {cert: a.pem, key: /b.pem, ca: sub/c.pem}\n")
	want := config.TLS{Cert: filepath.Join(f.Dir, "a.pem"), Key: "/b.pem", CA: filepath.Join(f.Dir, "sub/c.pem")}
	if got := f.TLS(identity.Control, "main"); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	f = load(t, "tls: {cert: 'certs/{role}/{name}.pem', key: '{role}/{name}/key.pem', ca: c.pem, trust_domain: td}\n")
	if got := f.TLS(identity.Proxy, "envoy@a"); got.Cert != filepath.Join(f.Dir, "certs/proxy/envoy%40a.pem") || got.Key != filepath.Join(f.Dir, "proxy/envoy%40a/key.pem") {
		t.Errorf("of one component: %+v", got)
	}
	plain := load(t, "")
	if got := plain.TLS(identity.Control, "main"); got != (config.TLS{}) {
		t.Errorf("without TLS: %+v", got)
	}
}

// TestBootstrapUnderTLS: Envoy wants the certificate of whom it dials.
func TestBootstrapUnderTLS(t *testing.T) {
	f := load(t, "tls: {cert: a.pem, key: b.pem, ca: c.pem}\n")
	out, err := f.Bootstrap(resources.BootstrapConfig{NodeID: "edge"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"san_type": "IP_ADDRESS"`, `"exact": "127.0.0.1"`, filepath.Join(f.Dir, "c.pem"), `"TLSv1_3"`, `"port_value": 18000`} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %s in\n%s", want, out)
		}
	}
	if _, err := f.Bootstrap(resources.BootstrapConfig{NodeID: "edge", ControlPlane: "nonsense"}); err == nil {
		t.Error("a control plane without a port is taken")
	}
}

// TestProxyLimits: what the file says of limits is what the server has.
func TestProxyLimits(t *testing.T) {
	f := load(t, "control: {limits: {streams: 1, stream_names: 2, node_names: 3, rate: 4, burst: 50, nodes: 6}}\n")
	c, err := f.Control(nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := (server.Limits{Streams: 1, StreamNames: 2, NodeNames: 3, Rate: 4, Burst: 50, Nodes: 6}); c.Limits != want {
		t.Errorf("%+v, want %+v", c.Limits, want)
	}
}
