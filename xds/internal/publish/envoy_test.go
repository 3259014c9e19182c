package publish_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/cache"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/resources"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// controlPlane is a control plane on loopback: publisher, cache and gRPC
// server.
type controlPlane struct {
	address   string
	publisher *publish.Publisher
	cache     *cache.Cache
	ledger    *publish.Ledger
	sent      atomic.Int64 // resources sent on delta streams
	stop      func()
}

// newControlPlane completes the configuration with a cache and a ledger. It serves
// nothing yet.
func newControlPlane(t *testing.T, cfg publish.Config) *controlPlane {
	t.Helper()
	p := &controlPlane{
		cache:  cache.New(cache.Config{Group: func(n *corev3.Node) string { return cfg.Groups.GroupOf(n.GetId(), n.GetCluster()) }}),
		ledger: publish.NewLedger(nil),
	}
	if cfg.Cache == nil {
		cfg.Cache = p.cache
	}
	cfg.Ledger = p.ledger
	var err error
	if p.publisher, err = publish.New(cfg); err != nil {
		t.Fatal(err)
	}
	return p
}

// ads returns a function that registers the stock server's ADS.
func (p *controlPlane) ads(callbacks serverv3.Callbacks) func(context.Context, *grpc.Server) {
	return func(ctx context.Context, server *grpc.Server) {
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, serverv3.NewServer(ctx, p.cache, callbacks, sotw.WithOrderedADS()))
	}
}

// serve runs the publisher and a gRPC server with the registered services until
// stop is called.
func (p *controlPlane) serve(t *testing.T, address string, register func(context.Context, *grpc.Server)) {
	t.Helper()
	listener := testkit.Must(net.Listen("tcp", cmp.Or(address, testkit.Addresses(t, 1)[0])))
	ctx, cancel := context.WithCancel(context.Background())
	p.address = listener.Addr().String()
	server := grpc.NewServer()
	register(ctx, server)
	var wg sync.WaitGroup
	wg.Go(func() { server.Serve(listener) })
	wg.Go(func() { p.publisher.Run(ctx) })
	p.stop = sync.OnceFunc(func() { cancel(); server.Stop(); wg.Wait() })
	t.Cleanup(p.stop)
}

// waitForCurrent waits until that many nodes have all resources of an epoch.
func (p *controlPlane) waitForCurrent(t *testing.T, epoch policies.Epoch, nodes int) {
	t.Helper()
	testkit.WaitForValue(t, fmt.Sprintf("%d nodes at plan %d", nodes, epoch), p.publisher.Status, func(st publish.Status) bool {
		n := 0
		for _, node := range st.Nodes {
			if node.Current && node.Epoch == epoch {
				n++
			}
		}
		return st.Phase == "idle" && st.Epoch == epoch && n >= nodes
	})
}

// backend is a replica: an h2c server that answers with its name.
type backend struct {
	id      string
	address string
	kill    func() // closes every connection and the listener
}

func startBackend(t *testing.T, id, address string) *backend {
	t.Helper()
	b := &backend{id: id}
	b.address, b.kill = testkit.ServeHTTP(t, &http.Server{
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 10000},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(io.Discard, r.Body)
			if err != nil {
				return
			}
			w.Header().Set("x-replica", id)
			for name := range r.Header {
				if length.IsControlHeader(strings.ToLower(name)) {
					w.Header().Add("x-forged", name)
				}
			}
			fmt.Fprint(w, n)
		}),
	}, cmp.Or(address, testkit.Addresses(t, 1)[0]))
	return b
}

// backendView is view over real backends.
func backendView(backends map[string]*backend, epoch policies.Epoch, cuts []policies.Tokens, stages ...string) resources.View {
	v := publish.View(epoch, cuts, stages...)
	v.Settings = resources.Settings{Listen: "127.0.0.1:0"}
	for i := range v.Endpoints {
		v.Endpoints[i].Address = backends[string(v.Endpoints[i].ID)].address
	}
	return v
}

// startEnvoy starts an Envoy of the control plane at an address.
func startEnvoy(t *testing.T, id, address string) *envoytest.Process {
	t.Helper()
	boot := testkit.Must(resources.Bootstrap(resources.BootstrapConfig{NodeID: id, ControlPlane: address}))
	return envoytest.Start(t, envoytest.Config{Bootstrap: string(boot)})
}

// client sends requests to Envoy.
type client struct {
	url  string
	http *http.Client
}

func newClient(t *testing.T, envoy *envoytest.Process) *client {
	t.Helper()
	address := envoy.Listener(resources.ListenerName)
	if _, err := netip.ParseAddrPort(address); err != nil {
		t.Fatalf("listener %q: %v", address, err)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	t.Cleanup(transport.CloseIdleConnections)
	return &client{"http://" + address + "/v1/completions", &http.Client{Transport: transport, Timeout: 20 * time.Second}}
}

// post sends a body of n bytes and returns which replica of which stage
// answered.
func (c *client) post(n int, header ...string) (replica, stage string, err error) {
	req, err := http.NewRequest("POST", c.url, bytes.NewReader(make([]byte, n)))
	if err != nil {
		return "", "", err
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return "", "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", "", err
	}
	if resp.StatusCode != 200 || string(body) != fmt.Sprint(n) {
		return "", "", fmt.Errorf("status %d, body %.300q", resp.StatusCode, body)
	}
	if forged := resp.Header.Values("x-forged"); len(forged) > 0 {
		return "", "", fmt.Errorf("replica received forged header %q", forged)
	}
	return resp.Header.Get("x-replica"), resp.Header.Get(length.StageHeader), nil
}

func startBackends(t *testing.T, ids ...string) map[string]*backend {
	backends := make(map[string]*backend)
	for _, id := range ids {
		backends[id] = startBackend(t, id, "")
	}
	return backends
}

// startLoad sends requests of many sizes through each of the clients, four at a
// time, until stop is called, which returns their number. All must succeed.
func startLoad(t *testing.T, clients ...*client) (stop func() int64) {
	var wg sync.WaitGroup
	var served, failed atomic.Int64
	done := make(chan struct{})
	for i := range 4 * len(clients) {
		c := clients[i%len(clients)]
		wg.Go(func() {
			for n := 100; ; n = (n*7 + i) % 40000 {
				select {
				case <-done:
					return
				default:
				}
				if _, stage, err := c.post(n + 1); (err != nil || stage == "") && failed.Add(1) <= 5 {
					t.Errorf("%s: stage %q: %v", c.url, stage, err)
				}
				served.Add(1)
			}
		})
	}
	stop = sync.OnceValue(func() int64 { close(done); wg.Wait(); return served.Load() })
	t.Cleanup(func() { stop() })
	return stop
}

// TestEnvoyFailsOverAlone stops the control plane and kills the only replica of
// a stage: the next longer stage serves until the replica returns.
func TestEnvoyFailsOverAlone(t *testing.T) {
	backends := startBackends(t, "a", "b", "c", "d")
	p, _ := startServices(t, "")
	view := backendView(backends, 1, []policies.Tokens{1000, 5000}, "a", "b c", "d")
	p.publisher.Submit(view)
	c := newClient(t, startEnvoy(t, "edge", p.address))
	p.waitForCurrent(t, 1, 1)
	if replica, _, err := c.post(10); err != nil || replica != "a" {
		t.Fatal(replica, err)
	}
	p.stop()
	backends["a"].kill()
	got := make(map[string]int)
	for range 200 {
		replica, stage, err := c.post(10)
		testkit.NoError(t, err)
		if stage != "s0" {
			t.Errorf("stage %s", stage)
		}
		got[replica]++
	}
	if got["b"] == 0 || got["c"] == 0 || got["d"] > 0 || got["a"] > 0 {
		t.Errorf("served by %v, want the next longer stage", got)
	}
	// The next stage fails too: any other one serves.
	backends["b"].kill()
	backends["c"].kill()
	for range 50 {
		if replica, _, err := c.post(10); err != nil || replica != "d" {
			t.Fatal(replica, err)
		}
	}
	backends["d"].kill()
	if replica, _, err := c.post(10); err == nil {
		t.Fatalf("served by %q after all replicas were killed", replica)
	} else if t.Log(err); strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("clients see the address of a replica: %v", err)
	}
	// All replicas are ejected; one that returns is tried at once.
	backends["a"] = startBackend(t, "a", backends["a"].address)
	testkit.WaitFor(t, "the restarted replica to be used", func() bool {
		replica, _, err := c.post(10)
		return err == nil && replica == "a"
	})
}
