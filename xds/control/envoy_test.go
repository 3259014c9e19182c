package control

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/store"
)

// serveH2C serves HTTP/1.1 and h2c until the test ends or die is called, and returns the
// replica at that address.
func serveH2C(t *testing.T, id string, h http.Handler) (r policies.Replica, die func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 1 << 14}, Handler: h}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	die = func() { server.Close(); <-done }
	t.Cleanup(die)
	return policies.Replica{ID: policies.ReplicaID(id), Model: "m", Address: l.Addr().String(), Capacity: policies.Capacity{KV: 400_000, Batch: 256}}, die
}

// startUpstreams starts the front ends of n replicas as Envoy sees them: a plain response
// and a stream. kill ends one of them.
func startUpstreams(t *testing.T, n int) (list []policies.Replica, kill map[policies.ReplicaID]func()) {
	t.Helper()
	kill = make(map[policies.ReplicaID]func())
	for i := range n {
		id := fmt.Sprintf("r%d", i)
		r, die := serveH2C(t, id, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(io.Discard, r.Body)
			if err != nil || n != r.ContentLength {
				http.Error(w, "short body", http.StatusBadRequest)
				return
			}
			w.Header().Set("replica", id)
			if r.URL.Path != "/v1/chat/completions" {
				fmt.Fprintf(w, "%d bytes\n[DONE]\n", n)
				return
			}
			for i := range 5 {
				fmt.Fprintf(w, "data: %d\n\n", i)
				w.(http.Flusher).Flush()
				time.Sleep(2 * time.Millisecond) // the pace of an engine
			}
			_, _ = io.WriteString(w, "data: [DONE]\n\n")
		}))
		list, kill[r.ID] = append(list, r), die
	}
	return list, kill
}

// rulesWithoutReports are the rules of a fleet whose replicas do not report.
func rulesWithoutReports() fleet.Rules {
	r := fastRules()
	r.Speed, r.Grace = 1, time.Hour
	return r
}

// TestEnvoyFlips changes plans, boundaries and members under load on a real
// Envoy: no request fails and every one has a stage. A tenth of the plans also move
// replicas. Then the last replica of a stage dies while no control plane runs, and the
// next longer stage serves.
func TestEnvoyFlips(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t)
	flips := 100
	if os.Getenv("CASCADE_TEST_ALL") != "" {
		flips = 1000
	}
	list, kill := startUpstreams(t, 6)
	var ids []policies.ReplicaID
	for _, r := range list {
		ids = append(ids, r.ID)
	}
	st := store.New(store.NewMemory())
	c := startControl(t, Config{Rules: rulesWithoutReports(), Replicas: list, Store: st})
	_, url := startEnvoy(t, c, "envoy")

	load := startTraffic(t, url)
	var last policies.Plan
	for i := range flips {
		split := 1 + i/10%5
		cut := policies.Tokens(500 + 10*(i%50))
		last = policies.Plan{Model: "m", Epoch: policies.Epoch(100 + i), Stages: []policies.Stage{
			{Low: 0, High: cut, Replicas: ids[:split]}, {Low: cut, High: policies.Unbounded, Replicas: ids[split:]},
		}}
		storePlan(t, st, last)
		waitForEpoch(t, c, last.Epoch)
	}
	load.stop()
	t.Logf("%d plans, %d requests, %d failed", flips, load.done.Load(), load.failed.Load())
	if load.failed.Load() > 0 || load.done.Load() < int64(flips) {
		t.Errorf("%d of %d requests failed; the first: %v", load.failed.Load(), load.done.Load(), load.first)
	}

	// The boundary is exact to the byte of the body.
	estimator := length.Estimator{BytesPerToken: length.DefaultRatio}
	edge := 4 * int(last.Stages[1].Low)
	for _, n := range []int{1, edge - 8, edge - 4, edge - 1, edge, edge + 1, edge + 4, 220 << 10} {
		want := resources.StageName(last.StageOf(estimator.FromContentLength(int64(n))))
		if got := load.send("/v1/completions", n); got.err != nil || got.stage != want {
			t.Errorf("%d bytes: stage %q, want %q: %v", n, got.stage, want, got.err)
		}
	}

	// The only replica of the first stage dies while no control plane runs.
	alone := policies.Plan{Model: "m", Epoch: last.Epoch + 1, Stages: []policies.Stage{
		{Low: 0, High: 500, Replicas: ids[:1]}, {Low: 500, High: 2000, Replicas: ids[1:3]}, {Low: 2000, High: policies.Unbounded, Replicas: ids[3:]},
	}}
	storePlan(t, st, alone)
	waitForEpoch(t, c, alone.Epoch)
	if got := load.send("/v1/completions", 100); got.err != nil || got.replica != "r0" {
		t.Fatalf("before: %+v", got)
	}
	c.stop()
	kill["r0"]()
	for range 50 {
		if got := load.send("/v1/completions", 100); got.err != nil || alone.StageOfReplica(policies.ReplicaID(got.replica)) != 1 {
			t.Errorf("after: %+v, want a replica of the next longer stage", got)
		}
	}
}

// TestEnvoyRestart restarts the control plane on the same files; an Envoy
// reconnects and changes nothing.
func TestEnvoyRestart(t *testing.T) {
	envoytest.Binary(t)
	dir := t.TempDir()
	list, _ := startUpstreams(t, 4)
	run := func(l net.Listener) *runningControl {
		st := store.New(testkit.Must(store.NewFile(dir)))
		return startControl(t, Config{Rules: rulesWithoutReports(), Replicas: list, Store: st, Listener: l})
	}
	var l net.Listener
	for l == nil { // below the range of ephemeral ports, so that it stays free
		l, _ = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10000+rand.N(20000)))
	}
	c := run(l)
	envoy, _ := startEnvoy(t, c, "envoy")
	waitForEpoch(t, c, 1)
	before := envoy.Stats(resourceStats)
	c.stop()
	l, err := net.Listen("tcp", c.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c = run(l)
	waitForEpoch(t, c, 1)
	requireSameStats(t, envoy, resourceStats, before, policies.MaxStages+3)
}

// resourceStats matches the statistics that count resources. cds and lds
// update_success also count the initial empty responses after a reconnection, and
// are left out.
const resourceStats = `(cluster_(added|modified|removed)|listener_(added|modified)|\.rds\..*config_reload|^cluster\.cascade.*\.update_success)$`

// requireSameStats checks that the statistics that match a pattern, of which there
// must be at least a number, have not changed.
func requireSameStats(t *testing.T, envoy *envoytest.Process, pattern string, before map[string]int64, least int) {
	t.Helper()
	after := envoy.Stats(pattern)
	if len(after) < least {
		t.Fatalf("too few statistics: %v", after)
	}
	for name, n := range after {
		if before[name] != n {
			t.Errorf("%s: %d before, %d after", name, before[name], n)
		}
	}
}

// storePlan writes a plan into the store, as another control plane would.
func storePlan(t *testing.T, st *store.Store, p policies.Plan) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	updates := st.Watch(ctx)
	u := <-updates
	cancel()
	for range updates {
	}
	if _, err := st.CompareAndSwap(t.Context(), u.Version, store.Object{Epoch: p.Epoch, Plans: []policies.Plan{p}}); err != nil {
		t.Fatal(err)
	}
}

// waitForEpoch waits until the only node has acknowledged an epoch and the
// rollout is over.
func waitForEpoch(t *testing.T, c *runningControl, epoch policies.Epoch) {
	t.Helper()
	testkit.WaitForValue(t, fmt.Sprint("epoch ", epoch), c.publisher.Status, func(s publish.Status) bool {
		return s.Phase == "idle" && len(s.Nodes) == 1 && s.Nodes[0].Epoch >= epoch && s.Nodes[0].Current
	})
}

// trafficLoad is clients that send requests until they are stopped.
type trafficLoad struct {
	url          string
	client       *http.Client
	done, failed atomic.Int64
	mu           sync.Mutex
	first        error
	stop         func()
}

func startTraffic(t *testing.T, url string) *trafficLoad {
	l := &trafficLoad{url: url, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: waitTimeout}}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := w; ctx.Err() == nil; i++ {
				path := "/v1/completions"
				if i%3 == 0 {
					path = "/v1/chat/completions"
				}
				got := l.send(path, 100+(i*379)%6000)
				l.done.Add(1)
				if got.err != nil {
					l.failed.Add(1)
					l.mu.Lock()
					if l.first == nil {
						l.first = got.err
					}
					l.mu.Unlock()
				}
			}
		})
	}
	var once sync.Once
	l.stop = func() { once.Do(func() { cancel(); wg.Wait() }) }
	t.Cleanup(func() { l.stop(); l.client.CloseIdleConnections() })
	return l
}

// result is the outcome of a request.
type result struct {
	stage, replica string
	err            error
}

// send posts a body of n bytes. A complete response with a stage is a success.
func (l *trafficLoad) send(path string, n int) result {
	resp, err := l.client.Post(l.url+path, "application/json", bytes.NewReader(make([]byte, n)))
	if err != nil {
		return result{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	out := result{stage: resp.Header.Get(length.StageHeader), replica: resp.Header.Get("replica"), err: err}
	if err == nil && (resp.StatusCode != 200 || !strings.Contains(string(body), "[DONE]") || out.stage == "") {
		out.err = fmt.Errorf("%s, %q, stage %q", resp.Status, body, out.stage)
	}
	return out
}
