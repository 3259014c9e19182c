package frontend

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// prefillFleet is a fleet whose engines have KV connectors. r1 is the prefill replica of r0, the front end.
type prefillFleet struct {
	*fleet
	*connector
	placer         *placer
	live           atomic.Bool // r0's engine serves its block table
	asked, fetched int64       // calls before the test

	mu      sync.Mutex
	results []string // of OnPrefill
}

func newPrefillFleet(t *testing.T, change func(*Config)) *prefillFleet {
	w := &prefillFleet{placer: new(placer)}
	w.fleet, w.connector = newHandoffFleet(t, 3, func(c *Config) {
		if c.Replica == "r0" {
			c.Placer, c.FetchPrefill = w.placer, func() bool { return !w.live.Load() }
			c.OnPrefill = func(from policies.ReplicaID, fetched bool) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.results = append(w.results, fmt.Sprint(from, " ", fetched))
			}
		}
		if change != nil {
			change(c)
		}
	})
	w.placer.prefill.Store(true)
	w.placer.peer.Store(&w.servers[1].peer)
	w.asked, w.fetched = w.connector.asked.Load(), w.connector.fetched.Load() // when the servers looked for connectors
	return w
}

// ask sends a request to the front end, and fails the test unless it is answered as by an engine.
func (w *prefillFleet) ask(body string) {
	w.t.Helper()
	_, want := post(w.t, w.servers[0].client, strings.TrimPrefix(w.engines[2].URL, "http://"), "/v1/completions", body)
	resp, got := post(w.t, w.servers[0].client, w.servers[0].url, "/v1/completions", body)
	if resp.StatusCode != http.StatusOK || withoutIDs(got) != withoutIDs(want) {
		w.t.Errorf("%s %s, want %s", resp.Status, got, want)
	}
}

// streamOf returns a request with a prompt of n token ids whose answer is a stream.
func streamOf(n int) string {
	_, body := promptOf(n)
	return strings.Replace(body, `{`, `{"stream":true,`, 1)
}

// TestFetchPrefill has the prefill replica compute prompts whose KV the own engine fetches. The prefill replica's
// engine gets one request for one token. Whatever fails, the own engine computes the prompt, the client notices
// nothing but the time, and no second prompt is lost to an engine that cannot hand KV over.
func TestFetchPrefill(t *testing.T) {
	for _, x := range []struct {
		name           string
		change         func(w *prefillFleet)
		asked, fetched int64
		failed         string // the reason; "" for none
		takes          time.Duration
		again          int64 // calls of the prefill replica's engine by a second request
	}{
		{name: "fetched", asked: 1, fetched: 1, again: 1},
		{name: "no connector", change: func(w *prefillFleet) { w.engines[1].connector = nil }, failed: pullFailed},
		{name: "gone", change: func(w *prefillFleet) { w.engines[1].CloseClientConnections(); w.engines[1].Close() }, failed: pullFailed},
		{name: "its engine answers 500", change: func(w *prefillFleet) {
			w.engines[1].set(nil, func(rw http.ResponseWriter, _ *http.Request) { http.Error(rw, "no", 500) })
		}, failed: pullFailed, again: 1},
		{name: "it drains", change: func(w *prefillFleet) { w.servers[1].Drain() }, failed: pullFailed},
		{name: "for fewer ids", change: func(w *prefillFleet) {
			w.lie = func(p string) string { return strings.Replace(p, `_tokens":2000`, `_tokens":1999`, 1) }
		}, asked: 1, failed: pullFailed, again: 1},
		{name: "it hangs", change: func(w *prefillFleet) { w.keeping = func(r *http.Request) { <-r.Context().Done() } }, asked: 1, failed: pullDeadline, takes: 5 * time.Second},
		{name: "the fetch hangs", change: func(w *prefillFleet) { w.fetching = func(r *http.Request) { <-r.Context().Done() } }, asked: 1, fetched: 1, failed: pullDeadline, takes: 5 * time.Second},
		{name: "the fetch fails", change: func(w *prefillFleet) { w.fetching = func(*http.Request) { panic(http.ErrAbortHandler) } }, asked: 1, fetched: 1, failed: pullFailed},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newPrefillFleet(t, nil)
				if x.change != nil {
					x.change(w)
				}
				end := within(t, x.takes+500*time.Millisecond)
				w.ask(streamOf(2000))
				end()
				n, want := w.servers[0].Prefills(), Prefills{Fetched: 1, Tokens: 2000}
				if x.failed != "" {
					want = Prefills{Failed: map[string]uint64{x.failed: 1}}
				}
				if n.Seconds < x.takes.Seconds() || n.Seconds > x.takes.Seconds()+0.5 {
					t.Errorf("the request waited for %v s", n.Seconds)
				}
				if n.Seconds = 0; !reflect.DeepEqual(n, want) {
					t.Errorf("%+v, want %+v", n, want)
				}
				if a, b := w.connector.asked.Load()-w.asked, w.connector.fetched.Load()-w.fetched; a != x.asked || b != x.fetched {
					t.Errorf("%d engines were asked to keep KV, %d to fetch it", a, b)
				}
				if want := []string{fmt.Sprint("r1 ", x.failed == "")}; !reflect.DeepEqual(w.results, want) {
					t.Errorf("reported %v", w.results)
				}
				if x.failed == "" {
					// It has arrived once, where its prompt was computed.
					if a, b := w.servers[0].Status().Flow.Seen, w.servers[1].Status().Flow.Seen; a != 0 || b != 1 {
						t.Errorf("%d arrivals at the front end, %d at the prefill replica", a, b)
					}
				}
				calls := w.engines[1].calls.Load()
				w.ask(streamOf(2001))
				if again := w.engines[1].calls.Load() - calls; again != x.again {
					t.Errorf("the prefill replica's engine got %d requests for the next prompt, want %d", again, x.again)
				}
				w.placer.peer.Store(nil)
				w.requireIdle()
			})
		})
	}
}

// The engine of a prefill replica gets a request for exactly one token, which is discarded.
func TestFetchPrefillAsksForOneToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newPrefillFleet(t, nil)
		w.ask(streamOf(1500))
		for i, has := range []string{`"prompt":[`, `"max_tokens":1,`} { // the client's own request, and the handoff's
			if body := *w.engines[i].body.Load(); !strings.Contains(body, has) || strings.Contains(body, "do_remote_decode") != (i == 1) {
				t.Errorf("engine %d: %.300s", i, body)
			}
		}
		if n := w.engines[1].calls.Load(); n != 1 {
			t.Errorf("the prefill replica's engine got %d requests", n)
		}
		// Its answer is none of a request, which would count with the answers' lengths.
		time.Sleep(time.Second)
		prefill, weight := 0.0, 0.0
		n := w.servers[1].Status().Flow
		for b := range n.Edges {
			prefill, weight = prefill+n.Prefill[b], weight+n.Weight[b]
		}
		if n.Seen != 1 || !(prefill > 0) || weight != 0 {
			t.Errorf("the prefill replica counts %d arrivals, %v prompt tokens per second and the weight %v", n.Seen, prefill, weight)
		}
	})
}

// A prefill replica that is lost while it computes a prompt costs no more than the time until this is known, and a
// client that leaves ends its work and is held against no replica.
func TestFetchPrefillEnds(t *testing.T) {
	for _, x := range []struct {
		name    string
		end     func(w *prefillFleet, leave context.CancelFunc)
		reason  string
		results []string
	}{
		{"the replica is lost", func(w *prefillFleet, _ context.CancelFunc) { w.servers[0].HandlePeerLoss("r1") }, pullFailed, []string{"r1 false"}},
		{"the client leaves", func(_ *prefillFleet, leave context.CancelFunc) { leave() }, pullLeft, nil},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newPrefillFleet(t, nil)
				asked, ended := make(chan bool, 1), make(chan bool, 1)
				w.keeping = func(r *http.Request) { asked <- true; <-r.Context().Done(); ended <- true }
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				req, _ := http.NewRequestWithContext(ctx, "POST", "http://"+w.servers[0].url+"/v1/completions", strings.NewReader(streamOf(2000)))
				over := make(chan int, 1)
				go func() {
					resp, err := w.servers[0].client.Do(req)
					if err != nil {
						over <- 0
						return
					}
					defer resp.Body.Close()
					over <- resp.StatusCode
				}()
				<-asked
				if got := w.servers[0].Holders(); !reflect.DeepEqual(got, []policies.ReplicaID{"r1"}) {
					t.Errorf("peers whose life counts: %v", got)
				}
				defer within(t, 100*time.Millisecond)()
				x.end(w, leave)
				<-ended
				if status := <-over; (status == http.StatusOK) != (x.results != nil) {
					t.Errorf("answered with %d", status)
				}
				waitFor(t, func() bool { return w.servers[0].Prefills().Failed[x.reason] == 1 })
				w.mu.Lock()
				defer w.mu.Unlock()
				if !reflect.DeepEqual(w.results, x.results) {
					t.Errorf("reported %v, want %v", w.results, x.results)
				}
			})
		})
	}
}

// A request starts at the prefill replica, to move with its first token, if the own engine serves a block table, if the ids of its prompt are not known
// before, or if the holder's lease may be over once it is computed. A shorter one of the same engine does not.
func TestFetchPrefillStartsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newPrefillFleet(t, func(c *Config) { c.Cost = policies.Cost{D0: 0.01, D2: 0.0075} })
		for _, x := range []struct {
			name, body  string
			live, there bool
		}{
			{"of text", `{"model":"m","stream":true,"max_tokens":3,"prompt":"` + strings.Repeat("x ", 3000) + `"}`, false, true},
			{"long", streamOf(1001), false, true},
			{"short", streamOf(999), false, false},
			{"with a block table", streamOf(998), true, true},
		} {
			w.live.Store(x.live)
			seen, before := w.servers[1].Status().Flow.Seen, w.servers[0].Prefills().Fetched
			w.engines[1].body.Store(new(string))
			w.ask(x.body)
			waitFor(t, func() bool { return w.servers[1].Status().Flow.Seen == seen+1 })
			if streams := strings.Contains(*w.engines[1].body.Load(), `"stream":true`); streams != x.there {
				t.Errorf("%s: the prefill replica's engine answers with a stream: %v", x.name, streams)
			}
			if fetched := w.servers[0].Prefills().Fetched > before; fetched == x.there {
				t.Errorf("%s: fetched: %v", x.name, fetched)
			}
		}
	})
}
