package control

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
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
)

// serveH2C serves HTTP/1.1 and h2c until the test ends, and returns the replica at that address.
func serveH2C(t *testing.T, id string, h http.Handler) policies.Replica {
	t.Helper()
	address, _ := testkit.ServeHTTP(t, &http.Server{HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 1 << 14}, Handler: h}, "")
	return policies.Replica{ID: policies.ReplicaID(id), Model: "m", Address: address, Capacity: policies.Capacity{KV: 400_000, Batch: 256}}
}

// startUpstreams starts the front ends of n replicas as Envoy sees them: a plain response
// and a stream.
func startUpstreams(t *testing.T, n int) (list []policies.Replica) {
	t.Helper()
	for i := range n {
		id := fmt.Sprintf("r%d", i)
		list = append(list, serveH2C(t, id, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
		})))
	}
	return list
}

// rulesWithoutReports are the rules of a fleet whose replicas do not report.
func rulesWithoutReports() fleet.Rules {
	r := fastRules()
	r.Speed, r.Grace = 1, time.Hour
	return r
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
