package frontend

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/migrator/internal/loadtracker"
	"github.com/cascadeinfer/cascade/policies"
)

// TestForward checks that a forwarded request gets the same bytes, is counted at
// the replica that runs it and nowhere else, and is forwarded at most once.
func TestForward(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		fb, a, b, pa, pb := f.servers[1], f.engines[0], f.engines[1], f.placers[0], f.placers[1]
		pa.sendTo(f.target(1))
		pb.sendTo(f.target(0)) // would forward it back if it were asked

		hold := b.blockAt(4)
		const body = `{"model":"m","prompt":"x","max_tokens":9,"stream":true}`
		answer := make(chan string)
		go func() {
			_, text, err := tryDo(f.client, jsonRequest(f.url, "/v1/completions", body, "x-cascade-tokens", "77"))
			if err != nil {
				t.Error(err)
			}
			answer <- text
		}()
		waitFor(t, func() bool {
			return fb.Status().Load == policies.Load{Running: 1, Held: 7, Iteration: fb.Status().Load.Iteration}
		})
		if got := f.Status(); got.Load != (policies.Load{}) {
			t.Errorf("the front end of a forwarded request counts %+v", got.Load)
		}
		if got := *pa.last.Load(); got.Model != "m" || got.Input != 77 || got.MaxOutput != 9 || !got.Estimated {
			t.Errorf("the placer was asked about %+v", got)
		}
		if pb.last.Load() != nil {
			t.Error("the peer's placer was asked")
		}
		close(hold)
		got := <-answer
		b.set(nil, nil)
		_, want := b.post("/v1/completions", body)
		if withoutIDs(got) != withoutIDs(want) {
			t.Errorf("forwarded\n got %s\nwant %s", got, want)
		}
		if a.calls.Load() != 0 || b.last.Load().Header.Get("x-cascade-tokens") != "" {
			t.Error("the wrong engine was asked, or the right one saw a control header")
		}
		if fb.Status().EstimateError == 0 {
			t.Error("the holder did not compare the estimate")
		}
		// Unstreamed answers too: relayed first, then assembled.
		for range 2 {
			f.ask("/v1/completions", `{"model":"m","prompt":"x"}`)
		}
	}, places)
}

// TestForwardFallsBack checks every way in which a peer can fail before its
// first token.
func TestForwardFallsBack(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		fb, a, b := f.servers[1], f.engines[0], f.engines[1]
		const body = `{"model":"m","prompt":"x","stream":true}`
		serve := func(why string, peer policies.Target) {
			t.Helper()
			f.placers[0].sendTo(peer)
			before := a.calls.Load()
			resp, got := f.post("/v1/completions", body)
			if resp.StatusCode != 200 || !strings.HasSuffix(got, "[DONE]\n\n") || a.calls.Load() != before+1 {
				t.Errorf("%s: %d %s", why, resp.StatusCode, got)
			}
		}
		serve("port closed", policies.Target{Replica: "r1", Address: "127.0.0.1:1"})
		b.sendEvents("", true)
		serve("its engine dies before the first token", f.target(1))
		b.set(nil, nil)
		b.unhealthy.Store(true)
		fb.waitForReady(false)
		serve("its engine is away", f.target(1))
		b.unhealthy.Store(false)
		fb.waitForReady(true)
		fb.cfg.TrustDomain = "example.org"
		serve("it does not accept this front end", f.target(1))
		fb.cfg.TrustDomain = ""
		fb.Drain()
		serve("it drains", f.target(1))
		if got := fb.Status().Load; got.Running+got.Waiting != 0 {
			t.Errorf("the peer still counts %+v", got)
		}
	}, places)
}

// TestPlaceKnowsCachedPrompts checks what a Placer that may choose prefill replicas learns of a request:
// how much of its prompt's text the own engine has computed, or will get, and whether it can move.
func TestPlaceKnowsCachedPrompts(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		p := f.placers[0]
		// The engine has a token for each byte, and says that it has all of them cached: that teaches no ratio.
		taught := f.tracker.Begin(loadtracker.Arrival{TextBytes: 5000})
		taught.SetUsage(5000, 0, 0)
		taught.End()
		text := strings.Repeat("over the hill and far away ", 400)
		ask := func(path, format string, args ...any) policies.Request {
			t.Helper()
			resp, got := f.post(path, fmt.Sprintf(format, args...))
			if resp.StatusCode != 200 {
				t.Fatalf("%d %s", resp.StatusCode, got)
			}
			return *p.last.Load()
		}
		completion := func(model, text string) policies.Request {
			t.Helper()
			return ask("/v1/completions", `{"model":%q,"max_tokens":3,"stream":true,"prompt":%q}`, model, text)
		}
		share := func(what string, r policies.Request, least, most float64) {
			t.Helper()
			if got := float64(r.Cached) / float64(r.Input); got < least || got > most {
				t.Errorf("%s: %d of %d tokens are cached, want %v to %v", what, r.Cached, r.Input, least, most)
			}
		}
		share("without prefill replicas", completion("m", text), 0, 0)
		share("without prefill replicas", completion("m", text), 0, 0)
		p.prefill.Store(true)
		share("which the engine has computed", completion("m", text), 0.94, 1) // in whole steps
		share("longer", completion("m", text+text), 0.45, 0.7)                 // little less than half of it is known: its length is estimated
		share("from another place on", completion("m", "x"+text), 0, 0)
		share("of another model", completion("n", text), 0, 0)
		chat := `{"model":"m","max_tokens":3,"stream":true,"messages":[{"role":"user","content":%q}%s]}`
		share("a conversation", ask("/v1/chat/completions", chat, text, ""), 0, 0)
		share("its next turn", ask("/v1/chat/completions", chat, text, `,{"role":"assistant","content":"yes"}`), 0.9, 1)

		// What a prefill replica computes will be here.
		p.sendTo(f.target(1))
		share("for the prefill replica", completion("m", "p"+text), 0, 0)
		share("for the prefill replica, again", completion("m", "p"+text), 0.94, 1)
		p.sendTo(policies.Target{})
		f.forgetCached()
		share("the engine has restarted", completion("m", text), 0, 0)

		if r := completion("m", text); policies.Movable(r) != policies.NotPinned {
			t.Errorf("a stream is %v", policies.Movable(r))
		}
		if r := ask("/v1/completions", `{"model":"m","max_tokens":3,"prompt":"x"}`); policies.Movable(r) == policies.NotPinned {
			t.Error("a request whose answer is no stream can move")
		}
	}, places)
}

// TestForwardToLostPeer checks that a request which waits at a peer for its first
// token is served by the own engine when the peer is gone.
func TestForwardToLostPeer(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		f.placers[0].sendTo(f.target(1))
		f.engines[1].set(nil, silent)
		got := f.start(longRequest)
		waitFor(t, func() bool {
			return slices.Equal(f.Holders(), []policies.ReplicaID{"r1"}) && len(f.servers[1].LocalLegs()) == 1
		})
		if r := f.servers[1].LocalLegs()[0]; r.Request.Output != 0 || r.FrontEnd != "r0" || r.Request.MaxOutput != 70 || r.Request.Model != "m" {
			t.Errorf("%+v", r)
		}
		f.HandlePeerLoss("r1")
		if body := <-got; !strings.HasSuffix(body, "[DONE]\n\n") {
			t.Error(body)
		}
		f.requireIdle()
	}, places)
}

// TestFetchPrefill has the prefill replica compute prompts whose KV the own engine fetches. The prefill replica's
// engine gets one request for one token, which is discarded. Whatever fails, the own engine computes the prompt, the
// client notices nothing but the time, and no second prompt is lost to an engine that cannot hand KV over.
func TestFetchPrefill(t *testing.T) {
	for _, x := range []struct {
		name           string
		change         func(*fleet)
		asked, fetched int64
		failed         string // the reason; "" for none
		takes          time.Duration
		again          int64 // calls of the prefill replica's engine by a second request
	}{
		{name: "fetched", asked: 1, fetched: 1, again: 1},
		{name: "no connector", change: func(w *fleet) { w.engines[1].connector = nil }, failed: pullFailed},
		{name: "gone", change: func(w *fleet) { w.engines[1].CloseClientConnections(); w.engines[1].Close() }, failed: pullFailed},
		{name: "its engine answers 500", change: func(w *fleet) {
			w.engines[1].set(nil, func(rw http.ResponseWriter, _ *http.Request) { http.Error(rw, "no", 500) })
		}, failed: pullFailed, again: 1},
		{name: "it drains", change: func(w *fleet) { w.servers[1].Drain() }, failed: pullFailed},
		{name: "for fewer ids", change: func(w *fleet) {
			w.connector.lie = replacing(`_tokens":2005`, `_tokens":2004`)
		}, asked: 1, failed: pullFailed, again: 1},
		{name: "it hangs", change: func(w *fleet) { w.connector.keeping = hangs }, asked: 1, failed: pullDeadline, takes: 5 * time.Second},
		{name: "the fetch hangs", change: func(w *fleet) { w.connector.fetching = hangs }, asked: 1, fetched: 1, failed: pullDeadline, takes: 5 * time.Second},
		{name: "the fetch fails", change: func(w *fleet) { w.connector.fetching = dies }, asked: 1, fetched: 1, failed: pullFailed},
	} {
		t.Run(x.name, func(t *testing.T) {
			runFleet(t, 3, func(t *testing.T, w *fleet) {
				if x.change != nil {
					x.change(w)
				}
				end := within(t, x.takes+500*time.Millisecond)
				_, _, first := promptOf(2005)
				w.ask("/v1/completions", first)
				end()
				n, want := w.Prefills(), Pulls{Pulled: 1, Tokens: 2005}
				if x.failed != "" {
					want = Pulls{Failed: map[string]uint64{x.failed: 1}}
				}
				if n.Seconds < x.takes.Seconds() || n.Seconds > x.takes.Seconds()+0.5 {
					t.Errorf("the request waited for %v s", n.Seconds)
				}
				if n.Seconds = 0; !reflect.DeepEqual(n, want) {
					t.Errorf("%+v, want %+v", n, want)
				}
				if a, b := w.connector.asked.Load(), w.connector.fetched.Load(); a != x.asked || b != x.fetched {
					t.Errorf("%d engines were asked to keep KV, %d to fetch it", a, b)
				}
				if want := []string{fmt.Sprint("r1 ", x.failed == "")}; !reflect.DeepEqual(w.prefilled, want) {
					t.Errorf("reported %v", w.prefilled)
				}
				if x.failed == "" {
					for i, has := range []string{`"prompt":[`, `"max_tokens":1,`} { // the client's own request, and the handoff's
						if body := *w.engines[i].body.Load(); !strings.Contains(body, has) || strings.Contains(body, "do_remote_decode") != (i == 1) {
							t.Errorf("engine %d: %.300s", i, body)
						}
					}
					if n := w.engines[1].calls.Load(); n != 1 {
						t.Errorf("the prefill replica's engine got %d requests", n)
					}
					// It has arrived once, where its prompt was computed. What was generated there is no answer of a request,
					// which would count with the answers' lengths.
					time.Sleep(time.Second)
					at := w.servers[1].Status().Flow
					if a := w.Status().Flow.Seen; a != 0 || at.Seen != 1 || !(sum(at.Prefill) > 0) || sum(at.Weight) != 0 {
						t.Errorf("%d arrivals at the front end; at the prefill replica %+v", a, at)
					}
				}
				calls := w.engines[1].calls.Load()
				_, _, second := promptOf(2006)
				w.ask("/v1/completions", second)
				if again := w.engines[1].calls.Load() - calls; again != x.again {
					t.Errorf("the prefill replica's engine got %d requests for the next prompt, want %d", again, x.again)
				}
				w.requireIdle()
			}, fetchesPrefills)
		})
	}
}

// A prefill replica that is lost while it computes a prompt costs no more than the time until this is known, and a
// client that leaves ends its work and is held against no replica.
func TestFetchPrefillEnds(t *testing.T) {
	for _, x := range []struct {
		name    string
		end     func(w *fleet, leave context.CancelFunc)
		reason  string
		results []string
	}{
		{"the replica is lost", func(w *fleet, _ context.CancelFunc) { w.HandlePeerLoss("r1") }, pullFailed, []string{"r1 false"}},
		{"the client leaves", func(_ *fleet, leave context.CancelFunc) { leave() }, pullLeft, nil},
	} {
		t.Run(x.name, func(t *testing.T) {
			runFleet(t, 3, func(t *testing.T, w *fleet) {
				asked, ended := make(chan bool, 1), make(chan bool, 1)
				w.connector.keeping = func(r *http.Request) { asked <- true; <-r.Context().Done(); ended <- true }
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				_, _, body := promptOf(2000)
				over := make(chan error, 1)
				go func() {
					resp, _, err := tryDo(w.client, jsonRequest(w.url, "/v1/completions", body).WithContext(ctx))
					if err == nil && resp.StatusCode != http.StatusOK {
						err = errors.New(resp.Status)
					}
					over <- err
				}()
				<-asked
				if got := w.Holders(); !reflect.DeepEqual(got, []policies.ReplicaID{"r1"}) {
					t.Errorf("peers whose life counts: %v", got)
				}
				defer within(t, 100*time.Millisecond)()
				x.end(w, leave)
				<-ended
				if err := <-over; (err == nil) != (x.results != nil) {
					t.Errorf("answered: %v", err)
				}
				waitFor(t, func() bool { return w.Prefills().Failed[x.reason] == 1 && w.inFlight.isIdle() })
				if !reflect.DeepEqual(w.prefilled, x.results) {
					t.Errorf("reported %v, want %v", w.prefilled, x.results)
				}
			}, fetchesPrefills)
		})
	}
}

// A request starts at the prefill replica, to move with its first token, if the own engine serves a block table, if the
// ids of its prompt are not known before, or if the holder's lease may be over once it is computed. A shorter one of the same engine does not.
func TestFetchPrefillStartsThere(t *testing.T) {
	streamOf := func(n int) string { _, _, body := promptOf(n); return body }
	runFleet(t, 3, func(t *testing.T, w *fleet) {
		for _, x := range []struct {
			name, body  string
			live, there bool
		}{
			{"of text", `{"model":"m","stream":true,"max_tokens":3,"prompt":"` + strings.Repeat("x ", 3000) + `"}`, false, true},
			{"long", streamOf(1001), false, true},
			{"short", streamOf(999), false, false},
			{"with a block table", streamOf(998), true, true},
		} {
			w.noFetch.Store(x.live)
			seen, before := w.servers[1].Status().Flow.Seen, w.Prefills().Pulled
			w.engines[1].body.Store(new(string))
			w.ask("/v1/completions", x.body)
			waitFor(t, func() bool { return w.servers[1].Status().Flow.Seen == seen+1 })
			if streams := strings.Contains(*w.engines[1].body.Load(), `"stream":true`); streams != x.there {
				t.Errorf("%s: the prefill replica's engine answers with a stream: %v", x.name, streams)
			}
			if fetched := w.Prefills().Pulled > before; fetched == x.there {
				t.Errorf("%s: fetched: %v", x.name, fetched)
			}
		}
	}, fetchesPrefills, configured(func(c *Config) { c.Cost = policies.Cost{D0: 0.01, D2: 0.0075} }))
}
