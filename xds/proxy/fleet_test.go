package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/internal/publicapi"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/testkit/memgrpc"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/cache"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/routing"
	"github.com/cascadeinfer/cascade/xds/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// control is a control plane that serves sets.
type control struct {
	t     testing.TB
	cache *cache.Cache
	conn  *grpc.ClientConn
	grpc  *grpc.Server
	stop  func()
}

func newControl(t testing.TB) *control {
	t.Helper()
	c := &control{t: t, cache: cache.New(cache.Config{}), grpc: grpc.NewServer()}
	ctx, cancel := context.WithCancel(context.Background())
	testkit.Must(server.New(server.Config{Cache: c.cache})).Register(ctx, c.grpc)
	conn, stop := memgrpc.Serve(t, c.grpc)
	c.conn = conn
	c.stop = func() { cancel(); stop() }
	return c
}

// edit changes the plan of proxies before it is served.
type edit func(*api.Routing)

// set publishes a view, whose plan edit may change first, and returns the version of the plan.
func (c *control) set(v resources.View, edit edit) (version string) {
	c.t.Helper()
	set := testkit.Must(resources.Build(v))
	r, plan := set.Get(resources.RoutingType, resources.RoutingName("")), new(api.Routing)
	if edit != nil {
		testkit.NoError(c.t, r.Decode(plan))
		edit(plan)
		r = testkit.Must(resources.Encode(r.Type, r.Name, plan))
	}
	c.cache.Set("", set.WithResources(r))
	return r.Version
}

// front is an upstream that reports the requests that it received.
type front struct {
	address string
	hits    atomic.Int64
	flooded atomic.Int64 // bytes of answers that it could write to X-Flood
	kill    func()       // closes the listener and the connections, as the death of its process would
}

// seen is the response of a front to a plain request.
type seen struct {
	By     string
	Header http.Header
	Host   string
	URI    string
	Proto  string
	Bytes  int
	Length int64
}

func newFront(t testing.TB, name string) *front {
	t.Helper()
	f := new(front)
	f.address, f.kill = testkit.ServeHTTP(t, &http.Server{
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: 20000},
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			f.hits.Add(1)
			w.Header().Set("X-By", name)
			w.Header().Set("Endpoint-Load-Metrics", "TEXT named_metrics.kv_cache_usage_perc=0.5")
			if r.Header.Get("Origin") != "" { // as vLLM by default, with --allow-credentials
				w.Header().Set("Access-Control-Allow-Origin", "*")
				w.Header().Set("Access-Control-Allow-Credentials", "true")
			}
			for r.Header.Get("X-Flood") != "" {
				if _, err := w.Write(make([]byte, 16<<10)); err != nil {
					return
				}
				f.flooded.Add(16 << 10)
			}
			if r.Header.Get("X-Refuse-By") == name {
				io.Copy(io.Discard, r.Body)
				w.Header().Set(length.RefusedHeader, length.RefusedUnbegun)
				w.WriteHeader(503)
				return
			}
			switch r.URL.Path {
			case "/sse":
				n, _ := strconv.Atoi(r.URL.Query().Get("n"))
				gap, _ := time.ParseDuration(r.URL.Query().Get("gap"))
				io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", "text/event-stream")
				for i := range n {
					fmt.Fprintf(w, "data: %d\n\n", i)
					w.(http.Flusher).Flush()
					select {
					case <-time.After(gap):
					case <-r.Context().Done():
						return
					}
				}
				io.WriteString(w, "data: [DONE]\n\n")
			case "/hang":
				io.Copy(io.Discard, r.Body)
				<-r.Context().Done()
			case "/refused", "/refused-by-" + name:
				io.Copy(io.Discard, r.Body)
				w.Header().Set(length.RefusedHeader, "1")
				w.WriteHeader(503)
			case "/refused-at-once":
				w.Header().Set(length.RefusedHeader, "1")
				w.WriteHeader(503)
				io.WriteString(w, "refused")
			case "/sink":
				io.Copy(io.Discard, r.Body)
			case "/dies", "/dies-refusing": // as a front end that a request breaks
				io.Copy(io.Discard, r.Body)
				if n, _ := strconv.Atoi(r.Header.Get(length.AttemptHeader)); n > 1 {
					w.WriteHeader(http.StatusProcessing)
				}
				if r.URL.Path == "/dies" {
					panic(http.ErrAbortHandler)
				}
				w.Header().Set(length.RefusedHeader, length.RefusedLost)
				w.WriteHeader(502)
			case "/cut":
				panic(http.ErrAbortHandler)
			case "/abort":
				io.WriteString(w, "half")
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			default:
				if code, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/status/")); err == nil {
					w.WriteHeader(code)
					if code != 200 {
						io.WriteString(w, "an answer")
					}
					return
				}
				n, _ := io.Copy(io.Discard, r.Body)
				json.NewEncoder(w).Encode(seen{name, r.Header, r.Host, r.RequestURI, r.Proto, int(n), r.ContentLength})
			}
		}),
	}, "")
	return f
}

// fleet is a proxy with fronts as its upstreams.
type fleet struct {
	t        testing.TB
	control  *control
	proxy    *Proxy
	fronts   []*front
	view     resources.View
	url      string
	client   http.Client
	registry *prometheus.Registry
	stop     func()
}

// twoStages returns a view with model m on four fronts: [0,1000) on 0 and 1, the rest
// on 2 and 3.
func twoStages(fronts []*front) resources.View {
	v := resources.View{Models: []resources.Model{{Name: "m", Context: 131072, BytesPerToken: 4000}}}
	v.Settings.ConnectTimeout = time.Minute // with the default, a dial that a busy machine delays looks like a dead replica
	p := policies.Plan{Model: "m", Epoch: 1, Stages: []policies.Stage{{Low: 0, High: 1000}, {Low: 1000,
		High: policies.Unbounded}}}
	for i, f := range fronts {
		id := policies.ReplicaID(fmt.Sprintf("r%d", i))
		v.Endpoints = append(v.Endpoints, resources.Endpoint{Replica: policies.Replica{ID: id, Model: "m", Address: f.address}, Weight: 10})
		s := &p.Stages[2*i/len(fronts)]
		s.Replicas = append(s.Replicas, id)
	}
	v.Plans = []policies.Plan{p}
	return v
}

func newFleet(t testing.TB, fronts int, edit edit) *fleet {
	t.Helper()
	return newFleetWith(t, fronts, edit, Config{everyPath: true})
}

func newFleetWith(t testing.TB, fronts int, edit edit, cfg Config) *fleet {
	t.Helper()
	f := &fleet{t: t, control: newControl(t), registry: prometheus.NewRegistry()}
	for i := range fronts {
		f.fronts = append(f.fronts, newFront(t, fmt.Sprintf("r%d", i)))
	}
	f.view = twoStages(f.fronts)
	f.control.set(f.view, edit)
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	logger := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	cfg.Client = routing.Config{Conn: f.control.conn, NodeID: "proxy", BackoffMin: time.Millisecond}
	cfg.Listener, cfg.DrainTimeout, cfg.Registry, cfg.Logger = l, 5*time.Second, f.registry, logger
	f.proxy = testkit.Must(New(cfg))
	f.stop = testkit.Run(t, f.proxy.Run)
	f.url = "http://" + l.Addr().String()
	f.client.Transport = &http.Transport{MaxIdleConnsPerHost: 100, DisableCompression: true}
	t.Cleanup(func() {
		f.client.CloseIdleConnections()
		f.stop()
		f.control.stop()
		f.control.conn.Close()
	})
	testkit.WaitForEvent(t, "the proxy is ready", f.proxy.Ready())
	return f
}

// runProxy runs a proxy that binds the plan's address, until the test ends.
func (c *control) runProxy(t *testing.T, cfg Config) *Proxy {
	t.Helper()
	cfg.Client, cfg.DrainTimeout, cfg.everyPath = routing.Config{Conn: c.conn, NodeID: "proxy"}, time.Second, true
	p := testkit.Must(New(cfg))
	t.Cleanup(func() { c.stop(); c.conn.Close() })
	testkit.Run(t, p.Run)
	return p
}

// waitForNoRequests waits until no request of the first stage is in progress.
func (f *fleet) waitForNoRequests() {
	f.t.Helper()
	c := f.proxy.state.Load().stages[stageKey{"m", 0}]
	testkit.WaitFor(f.t, "the end of all requests", func() bool { return c.requests.Load() == 0 })
}

// publish sets a view and waits until the proxy uses it.
func (f *fleet) publish(v resources.View, edit edit) {
	f.t.Helper()
	version := f.control.set(v, edit)
	testkit.WaitFor(f.t, "the proxy to use the view", func() bool {
		s := f.proxy.Snapshot()
		return s.Version == version && f.proxy.state.Load().plan == s.Routing
	})
}

// send sends a request; headers are pairs that are added.
func (f *fleet) send(method, path, host string, body io.Reader, headers ...string) (*http.Response, []byte) {
	f.t.Helper()
	r := testkit.Must(http.NewRequest(method, f.url+path, body))
	if host != "" {
		r.Host = host
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	resp, err := f.client.Do(r)
	testkit.NoError(f.t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	testkit.NoError(f.t, err)
	return resp, b
}

func (f *fleet) see(method, path, host string, body io.Reader, headers ...string) (*http.Response, seen) {
	f.t.Helper()
	resp, b := f.send(method, path, host, body, headers...)
	var s seen
	if err := json.Unmarshal(b, &s); err != nil || resp.StatusCode != 200 {
		f.t.Fatalf("%s %s: status %d, %s", method, path, resp.StatusCode, b)
	}
	return resp, s
}

// chunked hides the size of a body, so that it is sent without content-length.
type chunked struct{ io.Reader }

// testCertificate returns the certificate of the standard library's test server, and a pool that has it.
func testCertificate() ([]tls.Certificate, *x509.CertPool) {
	known := httptest.NewTLSServer(http.NotFoundHandler())
	known.Close()
	roots := x509.NewCertPool()
	roots.AddCert(known.Certificate())
	return known.TLS.Certificates, roots
}

// prompt returns a completion request of n bytes in all.
func prompt(model string, n int) []byte {
	empty := fmt.Sprintf(`{"model":%q,"prompt":""}`, model)
	return []byte(empty[:len(empty)-2] + strings.Repeat("x", max(0, n-len(empty))) + `"}`)
}

// failureOf decodes an error that the proxy itself made.
func failureOf(t testing.TB, body []byte) publicapi.Error {
	t.Helper()
	var e struct{ Error publicapi.Error }
	if err := json.Unmarshal(body, &e); err != nil {
		t.Fatalf("%s is no error: %v", body, err)
	}
	return e.Error
}
