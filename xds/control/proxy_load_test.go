package control

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/internal/grpctest"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// holdServer is an h2c upstream that keeps /v1/completions open until it is released,
// fails /version, and reports its KV use with every response.
type holdServer struct {
	policies.Replica
	release chan struct{}
	began   chan struct{} // one value for each stream that is held
}

func startHoldServer(t *testing.T, id string) *holdServer {
	t.Helper()
	h := &holdServer{release: make(chan struct{}), began: make(chan struct{}, 10_000)}
	h.Replica = serveH2C(t, id, h)
	return h
}

func (h *holdServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("endpoint-load-metrics", "TEXT named_metrics.kv_cache_usage_perc=0.25")
	switch r.URL.Path {
	case "/v1/completions":
		_, _ = io.WriteString(w, "data: 1\n\n")
		w.(http.Flusher).Flush()
		h.began <- struct{}{}
		select {
		case <-h.release:
		case <-r.Context().Done():
		}
	case "/version":
		w.WriteHeader(http.StatusInternalServerError)
	}
}

// activeRequests returns how many requests run at servers in the first stage; -1 if that is unknown.
func activeRequests(c *runningControl, servers ...*holdServer) int {
	var addresses []string
	for _, s := range servers {
		addresses = append(addresses, s.Address)
	}
	n, known := c.loads.ActiveRequests(resources.ClusterName("m", 0), addresses)
	if !known {
		return -1
	}
	return n
}

// clients are held streams of HTTP/2 connections to one proxy.
type clients struct {
	t      *testing.T
	url    string
	client *http.Client
	wg     sync.WaitGroup
	opened chan *http.Response
}

// newClients returns up to n clients of a proxy, which end with the test.
func newClients(t *testing.T, url string, n int) *clients {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: protocols}
	c := &clients{t: t, url: url, client: &http.Client{Transport: tr}, opened: make(chan *http.Response, n)}
	t.Cleanup(func() { c.end(); tr.CloseIdleConnections() })
	return c
}

// hold opens n streams and waits for the first byte of each.
func (c *clients) hold(n int) {
	c.t.Helper()
	errs := make(chan error, n)
	for range n {
		c.wg.Go(func() {
			resp, err := c.client.Post(c.url+"/v1/completions", "application/json", strings.NewReader("{}"))
			if err == nil {
				if resp.StatusCode != 200 || resp.Header.Get("endpoint-load-metrics") != "" {
					err = fmt.Errorf("%s, %v", resp.Status, resp.Header)
				}
				_, e := io.ReadFull(resp.Body, make([]byte, 9))
				if err == nil {
					err = e
				}
				c.opened <- resp
			}
			errs <- err
		})
	}
	for range n {
		testkit.NoError(c.t, <-errs)
	}
}

// end closes all streams.
func (c *clients) end() {
	c.wg.Wait()
	for {
		select {
		case resp := <-c.opened:
			resp.Body.Close()
		default:
			return
		}
	}
}

// get sends a request and returns its status.
func (c *clients) get(path string) int {
	c.t.Helper()
	resp, err := c.client.Get(c.url + path)
	testkit.NoError(c.t, err)
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	if h := resp.Header.Get("endpoint-load-metrics"); h != "" {
		c.t.Errorf("%s: client received header %q", path, h)
	}
	return resp.StatusCode
}

// startEnvoy runs an Envoy of a control plane, and returns it with its URL.
func startEnvoy(t *testing.T, c *runningControl, id string, others ...*runningControl) (*envoytest.Process, string) {
	t.Helper()
	cfg := resources.BootstrapConfig{NodeID: id, ControlPlane: c.Addr().String()}
	for _, o := range others {
		cfg.OtherControlPlanes = append(cfg.OtherControlPlanes, o.Addr().String())
	}
	boot := testkit.Must(resources.Bootstrap(cfg))
	e := envoytest.Start(t, envoytest.Config{Bootstrap: string(boot)})
	return e, "http://" + e.Listener(resources.ListenerName)
}

// TestEnvoyLoad checks that two Envoys report, exactly and together, the
// requests in progress, the failed ones and the KV use that engines report, and
// that their load is dropped after they disconnect. No migrator reports.
func TestEnvoyLoad(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t)
	a, b := startHoldServer(t, "r0"), startHoldServer(t, "r1")
	c := startControl(t, Config{Rules: rulesWithoutReports(), Replicas: []policies.Replica{a.Replica, b.Replica}})
	_, one := startEnvoy(t, c, "e1")
	second, two := startEnvoy(t, c, "e2")
	first, other := newClients(t, one, 100), newClients(t, two, 100)

	requests := func() (sum int, known bool) {
		for _, m := range c.Status().Models {
			for _, st := range m.Stages {
				for _, r := range st.Replicas {
					if r.ProxyRequests == nil {
						return 0, false
					}
					sum += *r.ProxyRequests
				}
			}
		}
		return sum, true
	}
	exactly := func(n int) func() bool {
		return func() bool { got, known := requests(); return known && got == n }
	}
	testkit.WaitFor(t, "reports of the idle Envoys", exactly(0))
	first.hold(23)
	other.hold(17)
	testkit.WaitFor(t, "all 40 streams in the reports", exactly(40))

	// The requests in progress at the replicas, by cluster.
	cluster := resources.ClusterName("m", 0)
	testkit.WaitFor(t, "active requests by cluster", func() bool { return activeRequests(c, a, b) == 40 && activeRequests(c, a) == len(a.began) })
	testkit.WaitFor(t, "active requests by address, and none elsewhere", func() bool {
		byName, _ := c.loads.book.Active(time.Now(), cluster, []string{a.Address, b.Address})
		elsewhere, known := c.loads.ActiveRequests(resources.ClusterName("m", 1), []string{a.Address})
		return byName == 40 && elsewhere == 0 && known
	})

	// Failures, and responses with the KV use: each report covers only the time
	// since the previous one, so none may be missed.
	began := time.Now()
	reported := make(map[string]bool) // addresses with a reported KV use
	testkit.WaitFor(t, "reports of failures and KV use", func() bool {
		if s := first.get("/version"); s != 500 {
			t.Fatalf("status %d", s)
		}
		for addr, s := range c.loads.book.Loads(time.Now()) {
			if s.Answers > 0 && s.Share == 0.25 {
				reported[addr.String()] = true
			}
		}
		bad, why := c.loads.Regression("", began)
		return len(reported) > 0 && bad && strings.Contains(why, "failed")
	})

	// Weights follow the requests where no migrator reports.
	testkit.WaitFor(t, "weights by the proxies' reports", func() bool {
		for _, m := range c.fleet.Snapshot().Models {
			for _, r := range m.Replicas {
				if r.Estimate.Source.String() != "proxies" {
					return false
				}
			}
		}
		return true
	})

	// One Envoy dies, and streams end.
	second.Stop()
	testkit.WaitFor(t, "the dead Envoy's requests to be dropped", exactly(23))
	if os.Getenv("CASCADE_TEST_ALL") != "" { // ten seconds later
		testkit.WaitFor(t, "the end of its requests", func() bool { return activeRequests(c, a, b) == 23 })
	}
	close(a.release)
	close(b.release)
	first.end()
	testkit.WaitFor(t, "the end of all streams", exactly(0))
}

// TestGRPCLoad checks that gRPC's own client calls all replicas of a stage and reports
// load by locality, which suffices to detect regressions and to drain.
func TestGRPCLoad(t *testing.T) {
	t.Parallel()
	f := newFakeFleet(t, 2)
	c := startControl(t, Config{Rules: fastRules(), Replicas: f.list})
	f.startReports(t, c)
	call := grpctest.Dial(t, grpctest.Bootstrap(c.Addr().String()), "xds:///"+resources.GRPCListenerName("m"))
	called := make(map[string]bool)
	testkit.WaitFor(t, "calls at both replicas and reports of them", func() bool {
		switch id, err := call("5"); {
		case err == nil:
			called[id] = true
		case len(called) > 0: // else the fleet may still be starting
			t.Fatal(err)
		}
		o := c.loads.book.Outcomes(time.Now())[""]
		return o.Ended > 0 && o.Failed == 0 && len(called) == 2
	})
	testkit.WaitFor(t, "the end of all calls", func() bool {
		n, known := c.loads.ActiveRequests(resources.ClusterName("m", 0), []string{f.list[0].Address})
		return known && n == 0
	})
}

// TestEnvoyManyStreams opens thousands of streams on one stage of one Envoy:
// none overflows, and when the last one has started, none waits for a
// connection.
func TestEnvoyManyStreams(t *testing.T) {
	envoytest.Binary(t)
	const streams = 3000
	a, b := startHoldServer(t, "r0"), startHoldServer(t, "r1")
	c := startControl(t, Config{Rules: rulesWithoutReports(), Replicas: []policies.Replica{a.Replica, b.Replica}})
	envoy, url := startEnvoy(t, c, "e1")
	began := time.Now()
	all := make([]*clients, 12)
	for i := range all {
		all[i] = newClients(t, url, streams/len(all))
		all[i].hold(streams / len(all))
	}
	opened := time.Since(began)
	stats := envoy.Stats(`^cluster\.cascade/.*(upstream_rq_pending_overflow|upstream_rq_pending_active|upstream_rq_active|upstream_cx_active|upstream_rq_pending_total)$`)
	sums := make(map[string]int64)
	for name, n := range stats {
		sums[name[strings.LastIndexByte(name, '.')+1:]] += n
	}
	t.Logf("%d streams in %v: %v", streams, opened.Round(time.Millisecond), sums)
	if sums["upstream_rq_active"] != streams || sums["upstream_rq_pending_overflow"] != 0 || sums["upstream_rq_pending_active"] != 0 {
		t.Errorf("%v", sums)
	}
	testkit.WaitFor(t, "reports of all streams", func() bool { return activeRequests(c, a, b) == streams })
	close(a.release)
	close(b.release)
}

// TestEnvoyRetireWaits checks that a replica which leaves the fleet stays in a
// real Envoy, without new requests, until the last one there has ended.
func TestEnvoyRetireWaits(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t)
	a, b := startHoldServer(t, "r0"), startHoldServer(t, "r1")
	c := startControl(t, Config{Rules: rulesWithoutReports(), Replicas: []policies.Replica{a.Replica, b.Replica}})
	envoy, url := startEnvoy(t, c, "e1")
	held := newClients(t, url, 10)
	held.hold(10)
	cluster := resources.ClusterName("m", 0)
	testkit.WaitFor(t, "reports of the streams", func() bool { return activeRequests(c, a, b) == 10 })
	has := func(address string) bool { return strings.Contains(envoy.Clusters(), cluster+"::"+address+"::") }
	draining := func() bool {
		return strings.Contains(envoy.Clusters(), cluster+"::"+b.Address+"::health_flags::/failed_eds_health") ||
			strings.Contains(envoy.Clusters(), cluster+"::"+b.Address+"::health_flags::/eds_status_draining")
	}
	testkit.NoError(t, c.SetReplicas([]policies.Replica{a.Replica}))
	testkit.WaitFor(t, "the replica to drain", draining)
	more := uint64(testkit.Size(1, 3))
	reported, _ := c.loads.service.Reports()
	for n := reported; n < reported+more; n, _ = c.loads.service.Reports() {
		if !has(b.Address) {
			t.Fatalf("removed with %d streams on it", len(b.began))
		}
		if s := held.get("/v1/models"); s != 200 {
			t.Fatalf("status %d", s)
		}
	}
	close(b.release)
	began := time.Now()
	testkit.WaitFor(t, "the replica's removal", func() bool { return !has(b.Address) })
	t.Logf("removed %v after its last request ended", time.Since(began).Round(time.Millisecond))
	close(a.release)
}
