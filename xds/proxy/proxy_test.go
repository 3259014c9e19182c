package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/http2"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/policies/policytest"
	"github.com/cascadeinfer/cascade/xds/client"
	"github.com/cascadeinfer/cascade/xds/resources"
)

func stageOf(by string) int {
	if by == "r0" || by == "r1" {
		return 0
	}
	return 1
}

// TestRoutesByLength sends one token less and one more than the boundary, with a
// content length, chunked, and with 220 KiB.
func TestRoutesByLength(t *testing.T) {
	f := newFleet(t, 4, nil)
	for _, n := range []int{400, 3996, 3999, 4000, 4004, 220 << 10} {
		want := 0
		if n >= 4000 {
			want = 1
		}
		resp, s := f.see("POST", "/v1/completions", "any.host:8080", bytes.NewReader(prompt("m", n)))
		if stageOf(s.By) != want || s.Bytes != n || s.Length != int64(n) {
			t.Errorf("%d bytes went to %s (%d bytes arrived), want stage %d", n, s.By, s.Bytes, want)
		}
		if got := s.Header.Get("X-Cascade-Tokens"); got != strconv.Itoa(n/4) {
			t.Errorf("%d bytes: x-cascade-tokens is %q", n, got)
		}
		if s.Header.Get("X-Gateway-Model-Name") != "m" {
			t.Errorf("the model is %q", s.Header.Get("X-Gateway-Model-Name"))
		}
		if got := resp.Header.Get("X-Cascade-Stage"); got != fmt.Sprintf("s%d", want) {
			t.Errorf("x-cascade-stage is %q", got)
		}
		if got := resp.Header.Get("X-Cascade-Epoch"); got != "1" {
			t.Errorf("x-cascade-epoch is %q", got)
		}
		if s.Proto != "HTTP/2.0" || s.Host != "any.host:8080" {
			t.Errorf("the front saw %s and host %s", s.Proto, s.Host)
		}
	}
	// Without a content length the text is counted.
	over := len(prompt("m", 0))
	for _, tokens := range []int{1, 999, 1000, 1001, 55 << 10} {
		want := 0
		if tokens >= 1000 {
			want = 1
		}
		_, s := f.see("POST", "/v1/completions", "", chunked{bytes.NewReader(prompt("m", over+4*tokens))})
		if stageOf(s.By) != want || s.Bytes != over+4*tokens || s.Header.Get("X-Cascade-Tokens") != strconv.Itoa(tokens) {
			t.Errorf("chunked, %d tokens: %s got %d bytes, header %q", tokens, s.By, s.Bytes, s.Header.Get("X-Cascade-Tokens"))
		}
	}
	// A request without a body goes to the last stage.
	_, s := f.see("GET", "/v1/models?x=a%2Fb", "", nil)
	if stageOf(s.By) != 1 || s.URI != "/v1/models?x=a%2Fb" || s.Header["X-Cascade-Tokens"] != nil {
		t.Errorf("a GET went to %+v", s)
	}
}

// TestTrustBoundary checks that the length headers of clients are removed.
func TestTrustBoundary(t *testing.T) {
	f := newFleet(t, 4, nil)
	resp, s := f.see("POST", "/", "", bytes.NewReader(prompt("m", 8000)),
		"x-cascade-tokens", "5", "X-Cascade-Tokens", "7", "x-cascade-anything", "1", "x-gateway-model-name", "other",
		"Connection", "X-Private, close", "X-Private", "1", "X-Kept", "1", "X-Kept", "2")
	if stageOf(s.By) != 1 || !slices.Equal(s.Header["X-Cascade-Tokens"], []string{"2000"}) || s.Header["X-Cascade-Anything"] != nil {
		t.Errorf("forged headers: %s, %v", s.By, s.Header)
	}
	if got := resp.Header["Endpoint-Load-Metrics"]; got != nil || resp.Header.Get("X-By") == "" {
		t.Errorf("the client sees the replica's load: %v", got)
	}
	if s.Header["X-Private"] != nil || !slices.Equal(s.Header["X-Kept"], []string{"1", "2"}) {
		t.Errorf("connection headers: %v", s.Header)
	}
	if len(s.Header.Get("X-Request-Id")) != 36 || s.Header.Get("X-Forwarded-For") != "127.0.0.1" || s.Header.Get("X-Forwarded-Proto") != "http" {
		t.Errorf("forwarding headers: %v", s.Header)
	}
	if s.Header["Accept-Encoding"] != nil {
		t.Errorf("the proxy asks for encodings: %v", s.Header)
	}
}

// manyModels adds model n with its own host.
func manyModels(v resources.View) resources.View {
	v.Models = append(slices.Clone(v.Models), resources.Model{Name: "n/2", Context: 8192, Hosts: []string{"n.example"}})
	e := v.Endpoints[0]
	e.ID, e.Model, e.Address = "n0", "n/2", v.Endpoints[3].Address
	v.Endpoints = append(slices.Clone(v.Endpoints[:3]), e)
	v.Plans = []policies.Plan{{Model: "m", Epoch: 1, Stages: []policies.Stage{{Low: 0, High: 1000, Replicas: []policies.ReplicaID{"r0", "r1"}}, {Low: 1000, High: policies.Unbounded, Replicas: []policies.ReplicaID{"r2"}}}},
		policies.OneStagePlan("n/2", []policies.ReplicaID{"n0"})}
	return v
}

func TestManyModels(t *testing.T) {
	f := newFleet(t, 4, nil)
	f.publish(manyModels(f.view), nil, func(s *client.Snapshot) bool {
		plans, err := client.ReadPlans(s)
		return err == nil && len(plans) == 2
	})
	over := len(prompt("m", 0))
	for tokens, want := range map[int]string{999: "s0", 1000: "s1"} {
		resp, s := f.see("POST", "/", "x", bytes.NewReader(prompt("m", over+4*tokens)))
		if resp.Header.Get("X-Cascade-Stage") != want || s.Header.Get("X-Gateway-Model-Name") != "m" || s.Bytes != over+4*tokens {
			t.Errorf("%d tokens: %v", tokens, s)
		}
	}
	for _, host := range []string{"x", "n.example:80"} {
		if _, s := f.see("POST", "/", host, bytes.NewReader(prompt("n/2", 100))); s.By != "r3" || s.Header.Get("X-Gateway-Model-Name") != "n/2" {
			t.Errorf("host %s, model n/2: %v", host, s)
		}
	}
	for _, body := range []string{string(prompt("unknown", 50)), "not JSON", ""} {
		resp, b := f.send("POST", "/", "x", strings.NewReader(body))
		if resp.StatusCode != 404 || failure(t, b).Code != "model_not_found" || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%q: %d %s", body, resp.StatusCode, b)
		}
	}
	for _, body := range []io.Reader{bytes.NewReader(make([]byte, 16<<20+1)), chunked{bytes.NewReader(make([]byte, 17<<20))}} {
		resp, b := f.send("POST", "/", "x", body)
		if resp.StatusCode != 413 || failure(t, b).Code != codeTooLarge {
			t.Errorf("17 MiB without a model: %d %s", resp.StatusCode, b)
		}
	}
	// With a host of its own, the model's bodies need not be buffered.
	if _, s := f.see("POST", "/", "n.example", bytes.NewReader(make([]byte, 17<<20))); s.Bytes != 17<<20 {
		t.Errorf("17 MiB: %d arrived", s.Bytes)
	}
}

func TestErrorsNameTheReason(t *testing.T) {
	f := newFleet(t, 2, func(all map[string][]types.Resource) {
		rc := all[resources.RouteType][0].(*routev3.RouteConfiguration)
		rc.VirtualHosts[0].Domains = []string{"a"}
		to := func(host, cluster string) *routev3.VirtualHost {
			return &routev3.VirtualHost{Name: host, Domains: []string{host}, Routes: []*routev3.Route{{
				Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/x"}},
				Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster}}}}}}
		}
		rc.VirtualHosts = append(rc.VirtualHosts, to("unknown-cluster", "nope"), to("empty", "empty"))
		empty := &clusterv3.Cluster{Name: "empty", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
			LoadAssignment: &endpointv3.ClusterLoadAssignment{ClusterName: "empty"}}
		all[resources.ClusterType] = append(all[resources.ClusterType], empty)
	})
	for _, c := range []struct {
		host, path string
		status     int
		code       string
		names      string
	}{
		{"other", "/", 404, codeNoHost, `"other"`},
		{"empty", "/", 404, codeNoRoute, `"empty"`},
		{"unknown-cluster", "/x", 503, codeNoCluster, `"nope"`},
		{"empty", "/x", 503, codeNoUpstream, `"empty"`},
	} {
		resp, b := f.send("GET", c.path, c.host, nil)
		if e := failure(t, b); resp.StatusCode != c.status || e.Code != c.code || !strings.Contains(e.Message, c.names) {
			t.Errorf("%s%s: %d %s", c.host, c.path, resp.StatusCode, b)
		}
	}
	if got := testutil.ToFloat64(f.proxy.metrics.requests.WithLabelValues(noCluster, "404")); got != 2 {
		t.Errorf("%v requests counted as 404", got)
	}
}

// TestWeights checks that new requests are divided by the weights.
func TestWeights(t *testing.T) {
	f := newFleet(t, 2, nil)
	v := f.view
	v.Endpoints = slices.Clone(v.Endpoints)
	v.Plans = []policies.Plan{policies.OneStagePlan("m", []policies.ReplicaID{"r0", "r1"})}
	v.Endpoints[0].Weight, v.Endpoints[1].Weight = 30, 10
	f.publish(v, nil, func(s *client.Snapshot) bool {
		p, err := client.ReadPlans(s) // the routes arrive after the endpoints
		return err == nil && len(p) == 1 && len(p[0].Stages) == 1 && len(p[0].Stages[0].Replicas) == 2
	})
	for range 400 {
		f.see("GET", "/", "", nil)
	}
	if n := f.fronts[0].hits.Load(); n < 297 || n > 303 {
		t.Errorf("weight 30 of 40 got %d of 400", n)
	}
}

// TestFailover kills the only replica of a stage while no control plane reports it. The
// next priority serves, and no request fails.
func TestFailover(t *testing.T) {
	f := newFleet(t, 2, nil)
	f.see("POST", "/", "", bytes.NewReader(prompt("m", 100)))
	f.control.stop()
	f.fronts[0].kill()
	// A request on a connection that is dead but not yet known to be dead may have been
	// processed, and is not repeated.
	c := f.proxy.state.Load().clusters["cascade/m/s0/rr"]
	for pool := f.proxy.pools.Get(f.fronts[0].address, c.view.Load().upstream); pool.Connections() > 0; {
		time.Sleep(time.Millisecond)
	}
	for f.proxy.Connected() {
		time.Sleep(time.Millisecond)
	}
	for range 50 {
		if _, s := f.see("POST", "/", "", bytes.NewReader(prompt("m", 100))); s.By != "r1" {
			t.Fatalf("%s serves", s.By)
		}
	}
	if n := testutil.ToFloat64(f.proxy.metrics.ejections.WithLabelValues("cascade/m/s0/rr")); n < 1 {
		t.Error("the dead host was not ejected")
	}
	// An ejected replica costs no retries.
	before := testutil.ToFloat64(f.proxy.metrics.retries.WithLabelValues("cascade/m/s0/rr"))
	if before > 10 {
		t.Errorf("%v retries for 50 requests", before)
	}
}

// TestReturn checks that the ejected host is used again after its ejection time.
func TestReturn(t *testing.T) {
	f := newFleet(t, 2, func(all map[string][]types.Resource) {
		for _, c := range all[resources.ClusterType] {
			o := c.(*clusterv3.Cluster).OutlierDetection
			o.BaseEjectionTime, o.MaxEjectionTime = durationpb.New(50*time.Millisecond), durationpb.New(50*time.Millisecond)
			o.ConsecutiveGatewayFailure = wrapperspb.UInt32(2)
		}
	})
	// On a busy machine the ejection may end before the next request, once or twice.
	deadline := time.Now().Add(time.Minute)
	for by := ""; by != "r1"; {
		for range 2 {
			if resp, _ := f.send("POST", "/status/503", "", bytes.NewReader(prompt("m", 50))); resp.StatusCode != 503 {
				t.Fatalf("status %d; an upstream's 503 is passed on", resp.StatusCode)
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("r0 is never out")
		}
		_, s := f.see("POST", "/", "", bytes.NewReader(prompt("m", 50)))
		by = s.By
	}
	for by := ""; by != "r0"; {
		if time.Now().After(deadline) {
			t.Fatal("r0 is not back")
		}
		_, s := f.see("POST", "/", "", bytes.NewReader(prompt("m", 50)))
		by = s.By
	}
}

// TestRetryBeforeFirstByteOnly checks that the client sees the failure of a front that
// dies in the middle of a response.
func TestRetryBeforeFirstByteOnly(t *testing.T) {
	f := newFleet(t, 4, nil)
	resp, err := f.client.Get(f.url + "/abort")
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if string(b) != "half" || err == nil {
		t.Errorf("got %q and error %v, want the half and a cut", b, err)
	}
	total := int64(0)
	for _, fr := range f.fronts {
		total += fr.hits.Load()
	}
	if total != 1 {
		t.Errorf("%d fronts saw the request", total)
	}
}

func TestSSEFlushesEveryEvent(t *testing.T) {
	f := newFleet(t, 2, nil)
	for _, h2 := range []bool{false, true} {
		c := http.Client{Transport: transport(t, h2)}
		resp, err := c.Post(f.url+"/sse?n=3&gap=1h", "application/json", bytes.NewReader(prompt("m", 100)))
		if err != nil {
			t.Fatal(err)
		}
		if resp.Header.Get("Content-Type") != "text/event-stream" {
			t.Errorf("header %v", resp.Header)
		}
		// The next event is sent in an hour, so an event that is read now was flushed.
		if line, err := bufio.NewReader(resp.Body).ReadString('\n'); line != "data: 0\n" || err != nil {
			t.Errorf("http2 %v: %q, %v", h2, line, err)
		}
		resp.Body.Close()
	}
}

func transport(t testing.TB, http2 bool) *http.Transport {
	tr := &http.Transport{Protocols: new(http.Protocols), MaxIdleConnsPerHost: 1000, DisableCompression: true}
	tr.Protocols.SetHTTP1(!http2)
	tr.Protocols.SetUnencryptedHTTP2(http2)
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// TestCancel checks that the upstream request ends when its client disconnects.
func TestCancel(t *testing.T) {
	f := newFleet(t, 2, nil)
	for _, path := range []string{"/hang", "/sse?n=10&gap=1h"} {
		ctx, cancel := context.WithCancel(t.Context())
		r, _ := http.NewRequestWithContext(ctx, "POST", f.url+path, bytes.NewReader(prompt("m", 100)))
		before := f.fronts[0].hits.Load()
		done := make(chan error)
		go func() {
			resp, err := f.client.Do(r)
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			done <- err
		}()
		for f.fronts[0].hits.Load() == before {
			time.Sleep(time.Millisecond)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", path, err)
		}
	}
	// Shutdown of the fronts in the cleanup waits for their handlers: those that were
	// not cancelled would leak, and goleak would report them.
	for c := f.proxy.state.Load().clusters["cascade/m/s0/rr"]; c.requests.Load() != 0; {
		time.Sleep(time.Millisecond)
	}
}

func withTimeouts(idle, timeout time.Duration) func(map[string][]types.Resource) {
	return func(all map[string][]types.Resource) {
		for _, h := range all[resources.RouteType][0].(*routev3.RouteConfiguration).VirtualHosts {
			for _, r := range h.Routes {
				r.GetRoute().IdleTimeout, r.GetRoute().Timeout = durationpb.New(idle), durationpb.New(timeout)
			}
		}
	}
}

func TestTimeouts(t *testing.T) {
	f := newFleet(t, 2, nil)
	// A busy machine may pause for longer than a short limit; then the test tries a
	// longer one.
	patiently := func(limits func(time.Duration) (idle, timeout time.Duration), wrong func(limit time.Duration) string) {
		t.Helper()
		for limit := 100 * time.Millisecond; ; limit *= 4 {
			idle, timeout := limits(limit)
			f.publish(f.view, withTimeouts(idle, timeout), func(s *client.Snapshot) bool {
				r := s.Routes["cascade"].Hosts[0].Routes[0]
				return r.IdleTimeout == idle && r.Timeout == timeout
			})
			what := wrong(limit)
			if what == "" {
				return
			}
			if limit > 5*time.Second {
				t.Fatal(what)
			}
		}
	}
	read := func(path string) (status int, body []byte, err error) {
		resp, err := f.client.Post(f.url+path, "", bytes.NewReader(prompt("m", 100)))
		if err != nil {
			return 0, nil, err
		}
		defer resp.Body.Close()
		body, err = io.ReadAll(resp.Body)
		return resp.StatusCode, body, err
	}
	patiently(func(d time.Duration) (idle, timeout time.Duration) { return d, 0 }, func(idle time.Duration) string {
		if status, b, err := read("/hang"); status != 504 || err != nil || failure(t, b).Code != codeTimeout {
			return fmt.Sprintf("no answer: %d %s, %v", status, b, err)
		}
		if status, b, err := read("/sse?n=2&gap=1h"); status != 200 || err == nil {
			return fmt.Sprintf("a silent stream was not cut: %d %s", status, b)
		}
		// Events keep a stream open beyond the idle timeout.
		if status, b, err := read(fmt.Sprintf("/sse?n=20&gap=%v", idle/10)); status != 200 || err != nil || !bytes.Contains(b, []byte("[DONE]")) {
			return fmt.Sprintf("a lively stream was cut: %d %s, %v", status, b, err)
		}
		return ""
	})
	// The route's timeout ends even an active stream.
	patiently(func(d time.Duration) (idle, timeout time.Duration) { return 0, d }, func(time.Duration) string {
		if status, b, err := read("/sse?n=1000&gap=10ms"); status != 200 || err == nil {
			return fmt.Sprintf("a stream outlived the route's timeout: %d, %d bytes", status, len(b))
		}
		return ""
	})
}

// TestSlowBody checks that a client that stops sending does not hold the request open
// forever.
func TestSlowBody(t *testing.T) {
	f := newFleet(t, 2, withTimeouts(100*time.Millisecond, 0))
	c, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 408 || failure(t, b).Code != codeTimeout {
		t.Errorf("%d %s", resp.StatusCode, b)
	}
}

func TestCircuitBreaker(t *testing.T) {
	f := newFleet(t, 2, func(all map[string][]types.Resource) {
		for _, c := range all[resources.ClusterType] {
			c.(*clusterv3.Cluster).CircuitBreakers.Thresholds[0].MaxRequests = wrapperspb.UInt32(1)
		}
	})
	resp, err := f.client.Post(f.url+"/sse?n=5&gap=1h", "", bytes.NewReader(prompt("m", 100)))
	if err != nil {
		t.Fatal(err)
	}
	over, b := f.send("POST", "/", "", bytes.NewReader(prompt("m", 100)))
	if over.StatusCode != 503 || over.Header.Get("X-Envoy-Overloaded") != "true" || failure(t, b).Code != codeOverload {
		t.Errorf("%d %s", over.StatusCode, b)
	}
	resp.Body.Close()
	for c := f.proxy.state.Load().clusters["cascade/m/s0/rr"]; c.requests.Load() != 0; {
		time.Sleep(time.Millisecond)
	}
	f.see("POST", "/", "", bytes.NewReader(prompt("m", 100)))
}

// TestRunningStreamsSurvive checks that running streams continue through every kind of
// update: a flip away from their stage, the removal of their endpoint, an edit of their
// listener.
func TestRunningStreamsSurvive(t *testing.T) {
	f := newFleet(t, 4, nil)
	resp, err := f.client.Post(f.url+"/sse?n=30&gap=10ms", "", bytes.NewReader(prompt("m", 100)))
	if err != nil {
		t.Fatal(err)
	}
	v := f.view
	v.Endpoints = v.Endpoints[2:]
	v.Plans = []policies.Plan{policies.OneStagePlan("m", []policies.ReplicaID{"r2", "r3"})}
	v.Settings.IdleTimeout = time.Hour // an edit of the listener
	f.publish(v, nil, func(s *client.Snapshot) bool {
		return s.Listeners["cascade"].StreamIdle == time.Hour && len(s.Assignments["cascade/m/s0"].Priorities[0]) == 2 && len(s.Assignments["cascade/m/s0"].Priorities) == 1
	})
	if _, s := f.see("POST", "/", "", bytes.NewReader(prompt("m", 100))); stageOf(s.By) != 1 {
		t.Errorf("a new request went to %s, which is gone", s.By)
	}
	b, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || strings.Count(string(b), "data:") != 31 {
		t.Errorf("the stream ended early: %v, %d events", err, strings.Count(string(b), "data:"))
	}
}

// TestFlips checks the contract of the package under load: boundaries and replicas
// change hundreds of times while POSTs and streams run, and no request fails.
func TestFlips(t *testing.T) {
	f := newFleet(t, 4, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var load sync.WaitGroup
	var requests, failures atomic.Int64
	for i := range 8 {
		c := http.Client{Transport: transport(t, i%2 == 0)}
		load.Go(func() {
			sizes := []int{100, 3999, 4000, 30000}
			for n := i; ctx.Err() == nil; n++ {
				path := "/"
				if n%4 == 0 {
					path = "/sse?n=5&gap=1ms"
				}
				resp, err := c.Post(f.url+path, "application/json", bytes.NewReader(prompt("m", sizes[n%4])))
				requests.Add(1)
				if err != nil {
					failures.Add(1)
					t.Error(err)
					return
				}
				b, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != 200 || resp.Header.Get("X-Cascade-Stage") == "" {
					failures.Add(1)
					t.Errorf("%d %v %s", resp.StatusCode, err, b)
					return
				}
			}
		})
	}
	flips := 300
	if testing.Short() {
		flips = 50
	}
	for i := range flips {
		v := f.view
		cut := policies.Tokens(500 + i)
		p := policies.Plan{Model: "m", Epoch: policies.Epoch(i + 2), Stages: []policies.Stage{
			{Low: 0, High: cut, Replicas: []policies.ReplicaID{"r0", "r1", "r2"}[:2+i%2]},
			{Low: cut, High: policies.Unbounded, Replicas: []policies.ReplicaID{"r2", "r3"}[i%2:]}}}
		v.Previous, v.Plans = v.Plans, []policies.Plan{p}
		f.view.Plans = v.Plans
		f.publish(v, nil, func(s *client.Snapshot) bool {
			return s.Routes["cascade"].Hosts[0].Routes[0].Headers[1].End == int64(cut)
		})
	}
	cancel()
	load.Wait()
	t.Logf("%d flips under %d requests, %d failed", flips, requests.Load(), failures.Load())
}

// TestDrain checks that the proxy, when Run ends, lets streams finish and accepts no
// new ones.
func TestDrain(t *testing.T) {
	f := newFleet(t, 2, nil)
	f.proxy.cfg.DrainTimeout = time.Minute // a busy machine may delay the streams
	for _, h2 := range []bool{false, true} {
		c := http.Client{Transport: transport(t, h2)}
		resp, err := c.Post(f.url+"/sse?n=20&gap=10ms", "", bytes.NewReader(prompt("m", 100)))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		defer func() {
			b, err := io.ReadAll(resp.Body)
			if err != nil || !bytes.Contains(b, []byte("[DONE]")) {
				t.Errorf("http2 %v: the stream was cut: %v", h2, err)
			}
		}()
	}
	f.stop()
	if _, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://")); err == nil {
		t.Error("the proxy still accepts")
	}
}

// TestDrainTimeout checks that a stream that does not end in time is cut.
func TestDrainTimeout(t *testing.T) {
	f := newFleet(t, 2, nil)
	f.proxy.cfg.DrainTimeout = 50 * time.Millisecond
	resp, err := f.client.Post(f.url+"/sse?n=2&gap=1h", "", bytes.NewReader(prompt("m", 100)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	f.stop()
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the stream outlived the drain timeout")
	}
}

func TestConfigErrors(t *testing.T) {
	ok := client.Config{Target: "x", NodeID: "n"}
	for name, c := range map[string]Config{
		"no target":     {},
		"negative":      {Client: ok, DrainTimeout: -1},
		"name, no sock": {Client: ok, ListenerName: "x"},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%s: New accepted it", name)
		}
	}
}

// refusing starts an HTTP/2 server that refuses every stream after its body.
func refusing(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			stop := context.AfterFunc(t.Context(), func() { c.Close() })
			wg.Go(func() {
				defer stop()
				defer c.Close()
				if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
					return
				}
				f := http2.NewFramer(c, c)
				f.WriteSettings()
				f.WriteSettingsAck()
				for {
					frame, err := f.ReadFrame()
					if err != nil {
						return
					}
					if d, ok := frame.(*http2.DataFrame); ok && d.StreamEnded() {
						f.WriteRSTStream(d.StreamID, http2.ErrCodeRefusedStream)
					}
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

// TestRefusedStreamsAreRepeated checks that refused streams are repeated with their
// bodies: a front that drains or has lost its engine costs only a retry.
func TestRefusedStreamsAreRepeated(t *testing.T) {
	f := newFleet(t, 4, nil)
	v := f.view
	v.Endpoints = slices.Clone(v.Endpoints)
	v.Endpoints[0].Address = refusing(t)
	f.publish(v, nil, func(s *client.Snapshot) bool {
		return slices.ContainsFunc(s.Assignments["cascade/m/s0"].Priorities[0], func(e client.Endpoint) bool { return e.Address == v.Endpoints[0].Address })
	})
	for i := range 20 {
		var body io.Reader = bytes.NewReader(prompt("m", 3000))
		if i%2 == 0 {
			body = chunked{body}
		}
		if _, s := f.see("POST", "/", "", body); s.Bytes != 3000 || s.By == "r0" {
			t.Fatalf("%s got %d bytes", s.By, s.Bytes)
		}
	}
	if n := testutil.ToFloat64(f.proxy.metrics.failures.WithLabelValues("cascade/m/s0/rr", "refused stream")); n < 2 {
		t.Errorf("%v refusals seen", n)
	}
}

// TestRefusedAnswersAreRepeated checks that requests are repeated with their bodies
// after a refusal response: a front whose engine has just died refuses them, and
// another replica serves them.
func TestRefusedAnswersAreRepeated(t *testing.T) {
	f := newFleet(t, 4, nil)
	for i := range 20 {
		var body io.Reader = bytes.NewReader(prompt("m", 3000))
		if i%2 == 0 {
			body = chunked{body}
		}
		if _, s := f.see("POST", "/refused-by-r0", "", body); s.Bytes != 3000 || s.By == "r0" {
			t.Fatalf("%s got %d bytes", s.By, s.Bytes)
		}
	}
	if n := testutil.ToFloat64(f.proxy.metrics.failures.WithLabelValues("cascade/m/s0/rr", "refused answer")); n < 2 {
		t.Errorf("%v refusals seen", n)
	}
	// If all fronts refuse, the client gets the error.
	if resp, _ := f.send("POST", "/refused", "", bytes.NewReader(prompt("m", 3000))); resp.StatusCode != 503 || resp.Header.Get(length.RefusedHeader) == "" {
		t.Errorf("refused by all: %s", resp.Status)
	}
}

// TestEarlyAnswers checks that a front that responds without reading the body does not
// break the client's connection.
func TestEarlyAnswers(t *testing.T) {
	f := newFleet(t, 2, nil)
	c := http.Client{Transport: transport(t, false)}
	var load sync.WaitGroup
	for i := range 16 {
		load.Go(func() {
			for n := range 200 {
				var body io.Reader = bytes.NewReader(prompt("m", 1000+n*97))
				if i%2 == 0 {
					body = chunked{body}
				}
				resp, err := c.Post(f.url+"/status/200", "application/json", body)
				if err != nil {
					t.Error(err)
					return
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
	load.Wait()
}

// TestAllocations bounds the allocations of one request, without those of the client
// and the front.
func TestAllocations(t *testing.T) {
	if policytest.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	f := newFleet(t, 2, nil)
	c := http.Client{Transport: transport(t, false)}
	body := prompt("m", 1000)
	cost := func(url string) float64 {
		return testing.AllocsPerRun(300, func() {
			resp, err := c.Post(url+"/sink", "application/json", bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		})
	}
	direct, through := cost("http://"+f.fronts[0].address), cost(f.url)
	t.Logf("%.0f allocations direct, %.0f through the proxy", direct, through)
	if through-direct > 160 {
		t.Errorf("the proxy adds %.0f allocations", through-direct)
	}
}
