package inprocess

import (
	"bytes"
	"context"
	"io"
	"math"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// h2c returns a client transport for HTTP/2 in plain text, which carries many streams on a
// connection.
func h2c() *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Transport{Protocols: protocols}
}

// quietPeer serves as another migrator for a front end that forwards to it. It sends the first
// token of each stream and no more.
func quietPeer(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	const first = `data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"So","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":[1,2,3],"token_ids":[4]}]}` + "\n\n"
	server := &http.Server{Protocols: protocols, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 10_000}, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(frontend.ForwardHeader) == "" {
			http.Error(w, "not a forward", http.StatusForbidden)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("content-type", "text/event-stream; charset=utf-8")
		_, _ = io.WriteString(w, first)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close(); <-done })
	return l.Addr().String()
}

// away forwards requests to a peer while it is enabled.
type away struct {
	on   atomic.Bool
	peer string
}

// Prefills implements frontend.Placer.
func (*away) Prefills() bool { return false }

// HasHolders implements frontend.Placer.
func (*away) HasHolders() bool { return false }

// Place implements frontend.Placer.
func (a *away) Place(policies.Request, []prefix.Step) policies.Target {
	if a.on.Load() {
		return policies.Target{Replica: "quiet", Address: a.peer}
	}
	return policies.Target{}
}

// TestBalance checks that a front end with hundreds of streams that run on a peer still gets its
// earlier share of new requests.
func TestBalance(t *testing.T) {
	held, sent := 250, 400
	if everything {
		held, sent = 1000, 2000
	}
	planes(t, onEnvoy, func(t *testing.T, envoy string) {
		forward := &away{peer: quietPeer(t)}
		peers := h2c()
		t.Cleanup(peers.CloseIdleConnections)
		r := newFleetHarness(t, harnessConfig{envoy: envoy, replicas: 3, front: func(id string, c *frontend.Config) {
			if id == "r0" {
				c.Placer, c.Peers = forward, peers
			}
		}})
		both := stages([]policies.Tokens{1000}, ids(0, 1), ids(2))
		r.plan(both...)
		before := r.firstStageShare(sent)

		// All new streams reach r0, which forwards them to the peer.
		r.plan(stages([]policies.Tokens{1000}, ids(0), ids(1, 2))...)
		forward.on.Store(true)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		client := &http.Client{Transport: h2c()}
		defer client.CloseIdleConnections()
		for range held {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.URL()+"/v1/completions", bytes.NewReader(harness.WithStream(prompt(100, 1000))))
			testkit.NoError(t, err)
			resp, err := client.Do(req)
			if err != nil || resp.StatusCode != http.StatusOK {
				t.Fatalf("a stream does not begin: %v, %v", resp, err)
			}
			defer resp.Body.Close()
		}
		forward.on.Store(false)
		keeps := func(id string) (n int) {
			r.fronts[id].EachStream(func(*frontend.Stream) bool { n++; return true })
			return n
		}
		if n := keeps("r0"); n != held {
			t.Fatalf("r0 keeps %d streams, want %d", n, held)
		}
		if load := r.fronts["r0"].Status().Load; load.Running+load.Waiting != 0 {
			t.Fatalf("r0 counts the work of others as its own: %+v", load)
		}
		r.plan(both...)
		after := r.firstStageShare(sent)
		if change := math.Abs(after-before) / before; change > 0.05 {
			t.Errorf("r0 had %.1f %% of the requests, and with %d streams it has %.1f %%: a change of %.1f %%", 100*before, held, 100*after, 100*change)
		}
		if n := keeps("r0"); n != held {
			t.Errorf("r0 keeps %d streams now, want %d", n, held)
		}
		t.Logf("r0's share of %d requests is %.2f %% without, %.2f %% with %d streams; %d goroutines", sent, 100*before, 100*after, held, runtime.NumGoroutine())
	})
}

// firstStageShare sends n short requests to the first stage, a few at a time, and returns the fraction that
// r0 received.
func (r *fleetHarness) firstStageShare(n int) float64 {
	r.T.Helper()
	before := r.counts()
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := r.sendShort(); err != nil {
					r.T.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	who := r.countsSince(before)
	if who["r0"]+who["r1"] != int64(n) {
		r.T.Errorf("%d requests went to %v", n, who)
	}
	return float64(who["r0"]) / float64(n)
}
