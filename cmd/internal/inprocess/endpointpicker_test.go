package inprocess

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/endpointpicker"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/routing"
)

// gatewayKind is how a stock Envoy sends a request to the endpoint that was picked.
type gatewayKind uint8

const (
	overrideHost gatewayKind = iota // deploy/gateway/envoy.yaml: one of the pool's endpoints, from a list
	originalDst                     // any address, from the header
)

// gateway is a stock Envoy with an endpoint picker, in front of a fleet.
type gateway struct {
	*fleetHarness
	url    string
	picker *endpointpicker.Server
	envoy  *envoytest.Process
	stop   func() // ends the picker
}

// startGateway runs a picker that follows the fleet's control plane, and an Envoy that asks it.
func (r *fleetHarness) startGateway(kind gatewayKind, fallbacks int) *gateway {
	t := r.T.(*testing.T)
	t.Helper()
	envoytest.Binary(t)
	g := &gateway{fleetHarness: r, picker: testkit.Must(endpointpicker.New(endpointpicker.Config{Fallbacks: fallbacks, Logger: logger(t)}))}
	xds := testkit.Must(routing.New(routing.Config{Target: r.cfg.Fleet.Fleet.Control.Listen, NodeID: "epp", Watcher: g.picker}))
	testkit.Run(t, xds.Run)
	server := grpc.NewServer(g.picker.Options()...)
	g.picker.Register(server)
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(l) })
	g.stop = func() { server.Stop(); wg.Wait() }
	t.Cleanup(g.stop)

	boot := string(testkit.Must(os.ReadFile("../../../deploy/gateway/envoy.yaml")))
	boot = strings.Replace(boot, "port_value: 8090", "port_value: 0", 1)
	boot = strings.Replace(boot, "port_value: 9002", "port_value: "+portOf(l.Addr().String()), 1)
	const pool, picker = "  clusters:\n", "  - name: endpoint-picker\n"
	if kind == originalDst {
		before, rest, _ := strings.Cut(boot, pool)
		_, after, _ := strings.Cut(rest, picker)
		boot = before + string(testkit.Must(os.ReadFile("testdata/gateway-originaldst.yaml"))) + picker + after
	} else {
		var endpoints strings.Builder
		for _, n := range r.cfg.Fleet.Fleet.Replicas {
			fmt.Fprintf(&endpoints, "        - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %s}}}\n", portOf(n.Address))
		}
		before, rest, _ := strings.Cut(boot, "      - lb_endpoints:\n")
		_, after, _ := strings.Cut(rest, picker)
		boot = before + "      - lb_endpoints:\n" + endpoints.String() + picker + after
	}
	g.envoy = envoytest.Start(t, envoytest.Config{Bootstrap: "admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}\n" + boot})
	g.url = "http://" + g.envoy.Listener("gateway")
	return g
}

func portOf(address string) string {
	_, port, _ := strings.Cut(address, ":")
	return port
}

// ask sends a request and returns its status, and which front ends received requests meanwhile.
func (g *gateway) ask(body io.Reader, header ...string) (status int, answer string, at map[string]int64) {
	g.T.Helper()
	before := g.counts()
	req := testkit.Must(http.NewRequest(http.MethodPost, g.url+"/v1/completions", body))
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := g.HTTP.Do(req)
	testkit.NoError(g.T, err)
	defer resp.Body.Close()
	text := testkit.Must(io.ReadAll(resp.Body))
	return resp.StatusCode, string(text), g.countsSince(before)
}

// requireAt sends requests of a size, half of them without a length, and checks that only the
// given front ends received them.
func (g *gateway) requireAt(size int, front ...string) {
	g.T.Helper()
	for n := range 10 {
		var body io.Reader = bytes.NewReader(prompt(size, 2))
		if n%2 == 0 {
			body = io.MultiReader(body) // of unknown length: sent in chunks
		}
		status, answer, at := g.ask(body)
		if status != http.StatusOK || !strings.Contains(answer, `"completion_tokens":2`) {
			g.T.Fatalf("%d bytes: status %d: %.300s", size, status, answer)
		}
		for id := range at {
			if !slices.Contains(front, id) {
				g.T.Fatalf("%d bytes are at %s, want one of %v", size, id, front)
			}
		}
		if len(at) != 1 {
			g.T.Fatalf("%d bytes are at %v, want one replica", size, at)
		}
	}
}

// waitUntilPicked waits until requests of a size go to one of the given front ends.
func (g *gateway) waitUntilPicked(size int, front ...string) {
	g.T.Helper()
	hits := 0
	g.WaitFor(fmt.Sprintf("%d bytes to go to %v", size, front), func() bool {
		status, _, at := g.ask(bytes.NewReader(prompt(size, 1)))
		ids := slices.Collect(maps.Keys(at))
		if status == http.StatusOK && len(ids) == 1 && slices.Contains(front, ids[0]) {
			hits++
		} else {
			hits = 0
		}
		return hits == 10
	})
}

// TestEndpointPicker checks a fleet behind stock Envoys that have no routes of Cascade's and ask the endpoint picker, as a
// gateway with an InferencePool does. While the control plane is down and cannot report that a replica is dead, a
// gateway that tries a list in order serves every request at the next endpoint of the last plan's list, which for a
// stage's only replica is in the next longer stage.
func TestEndpointPicker(t *testing.T) {
	t.Parallel()
	r := newFleetHarness(t, harnessConfig{replicas: 4})
	g, original := r.startGateway(overrideHost, 3), r.startGateway(originalDst, 0)
	r.plan(stages([]policies.Tokens{1000}, ids(0, 1), ids(2, 3))...)
	for _, g := range []*gateway{g, original} {
		// Lengths have their stages, whole and in chunks, and bodies beyond the gateway's buffer pass.
		g.waitUntilPicked(400, "r0", "r1")
		g.waitUntilPicked(8000, "r2", "r3")
		g.requireAt(400, "r0", "r1")
		g.requireAt(8000, "r2", "r3")
		status, answer, at := g.ask(io.MultiReader(bytes.NewReader(prompt(300_000, 2))))
		if status != http.StatusOK || at["r2"]+at["r3"] != 1 {
			t.Errorf("300,000 bytes: status %d at %v: %.300s", status, at, answer)
		}
		testkit.NoError(t, r.Start(g.url, prompt(9000, 40)).Whole())

		// A client does not choose its endpoint, nor its stage.
		var reached atomic.Int64
		trap := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
		defer trap.Close()
		status, _, at = g.ask(bytes.NewReader(prompt(400, 1)), endpointpicker.DestinationHeader, trap.Listener.Addr().String(), length.TokensHeader, "90000")
		if status != http.StatusOK || at["r0"]+at["r1"] != 1 || reached.Load() != 0 {
			t.Errorf("a request with a destination of its own: status %d at %v, %d at its destination", status, at, reached.Load())
		}
	}

	// A replica that the control plane has drained, or that is dead, is not picked.
	r.Order("drain", "r2")
	r.killFront("r0")
	for _, g := range []*gateway{g, original} {
		g.waitUntilPicked(8000, "r3")
		g.waitUntilPicked(400, "r1")
	}
	r.stopControl()
	r.killFront("r1")
	g.requireAt(400, "r3") // the next longer stage

	// Without the picker no request reaches a replica, whatever destination it states.
	g.stop()
	if status, _, at := g.ask(bytes.NewReader(prompt(400, 1)), endpointpicker.DestinationHeader, r.replica("r3").Address); status != http.StatusServiceUnavailable || len(at) > 0 {
		t.Errorf("status %d at %v without the picker, want 503", status, at)
	}
}

// TestOriginalDestinationReadsOneAddress shows why the picker sends no fallbacks by default: an
// ORIGINAL_DST cluster answers 503 to a list.
func TestOriginalDestinationReadsOneAddress(t *testing.T) {
	t.Parallel()
	r := newFleetHarness(t, harnessConfig{replicas: 2})
	g := r.startGateway(originalDst, 1)
	g.WaitFor("the picker's plan", g.picker.Ready)
	status, answer, at := g.ask(bytes.NewReader(prompt(400, 1)))
	if status != http.StatusServiceUnavailable || len(at) != 0 {
		t.Errorf("status %d at %v: %.200s; ORIGINAL_DST reads lists now: raise the default of --fallbacks", status, at, answer)
	}
	if s := g.envoy.Stats(`cluster\.pool\.original_dst_host_invalid`); s["cluster.pool.original_dst_host_invalid"] == 0 {
		t.Errorf("the 503 has another cause: %v, %.200s", s, answer)
	}
}
