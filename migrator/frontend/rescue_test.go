package frontend

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/dialect"
	"github.com/cascadeinfer/cascade/migrator/dialect/vllm"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/migrator/internal/session"
	"github.com/cascadeinfer/cascade/policies"
)

// rescueOnce kills the engine of a stream once it has that many tokens. It returns the
// answer and the engine's own.
func (f *fleet) rescueOnce(kind [2]string, output policies.Tokens) (got, want string) {
	f.t.Helper()
	s := f.startKind(kind, output)
	f.engines[0].killAll()
	waitFor(f.t, func() bool { h, _ := f.Holder(s.id); return h.Replica == "r1" && !h.Pending })
	return <-s.got, s.want
}

// TestRescue kills the engines of answers of every kind, at every length. Engines may put several tokens into one event,
// as they do for a slow reader: then the client has the text of all of them except for
// a character that the last one has begun.
func TestRescue(t *testing.T) {
	for _, group := range []int64{1, 2} {
		runFleet(t, 3, func(t *testing.T, f *fleet) {
			f.learnTemplates()
			for _, e := range f.engines {
				e.tokensPerEvent.Store(group)
			}
			for n := range policies.Tokens(7 * group) { // of seven tokens, one splits a character
				for _, kind := range requestKinds() {
					if group > 1 && strings.Contains(kind[1], `"stream"`) {
						continue // its events would be grouped differently
					}
					body, want := f.rescueOnce(kind, 3+n)
					if withoutCached(body) != withoutCached(want) {
						t.Fatalf("%s, %d at once: rescued: %s", kind, group, firstDifference(withoutCached(body), withoutCached(want)))
					}
				}
			}
			f.requireIdle()
		}, rescues)
	}
}

// stays is a dialect that continues no request.
type stays struct{ vllm.Dialect }

func (stays) Continue(*openai.Resume, dialect.Continuation) []byte { return nil }

// TestAbortedByEngine checks a stream that its engine ends early with the finish reason "abort" and [DONE], as stock
// vLLM does when it is stopped: it goes on at another one, where it ends, and its client does not take a part for the
// whole.
func TestAbortedByEngine(t *testing.T) {
	for at := range 2 {
		runFleet(t, 2, func(t *testing.T, f *fleet) {
			f.placers[0].sendTo(f.target(at))
			want := f.directAnswer("/v1/completions", longRequest)
			const event = `data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":%s,"logprobs":null,"finish_reason":%s,"stop_reason":null,"prompt_token_ids":%s,"token_ids":%s}]}` + "\n\n"
			ids, prompt, events, v := []uint32{'"', 'x', '"'}, "[34,120,34]", "", detokenizer{}
			for range 3 {
				id := nextToken(ids)
				events += fmt.Sprintf(event, quote(v.add(id)), "null", prompt, formatIDs([]uint32{id}, true))
				ids, prompt = append(ids, id), "null"
			}
			f.engines[at].sendEvents(events+fmt.Sprintf(event, `""`, `"abort"`, "null", "[]")+"data: [DONE]\n\n", false)
			if got := <-f.start(longRequest); withoutCached(got) != withoutCached("200  "+want) {
				t.Errorf("aborted at r%d: got %s\nwant %s", at, got, want)
			}
			f.requireIdle()
			time.Sleep(time.Second) // there are no rates before time has passed
			for i, s := range f.servers {
				if ended := sum(s.Status().Flow.Weight) > 0; ended == (i == at) {
					t.Errorf("aborted at r%d: it has ended at r%d: %v", at, i, ended)
				}
			}
		}, places, rescues)
	}
}

// TestStreamKeepsDialect moves and rescues a stream after its front end's engine has stopped saying how it was started.
func TestStreamKeepsDialect(t *testing.T) {
	runFleet(t, 3, func(t *testing.T, f *fleet) {
		s := f.startStream(longRequest)
		var now dialect.Dialect = stays{}
		f.engineFacts.spoken.Store(&now)
		testkit.Must(f.migrateReprompt(t.Context(), s.id, 1))
		f.engines[1].killAll()
		f.requireRescuedAnswer(s)
	}, rescues)
}

// TestPeerLost checks what a front end does when a holder is gone, and a holder
// when a front end is.
func TestPeerLost(t *testing.T) {
	runFleet(t, 3, func(t *testing.T, f *fleet) {
		b := f.startStream(longRequest)
		testkit.Must(f.migrateLive(t.Context(), b.id, 1, nil))
		f.HandlePeerLoss("r2") // holds nothing
		f.rescuer.setTargets(f.target(2))
		f.HandlePeerLoss("r1") // although its engine goes on
		waitFor(t, func() bool { h, _ := f.Holder(b.id); return h == Holder{Replica: "r2", Epoch: 3} })
		f.requireRescuedAnswer(b)

		// A front end that is gone: its leg here ends, and others stay.
		b = f.startStream(longRequest)
		testkit.Must(f.migrateReprompt(t.Context(), b.id, 1))
		f.servers[1].HandlePeerLoss("r2")
		if len(f.servers[1].LocalLegs()) != 1 {
			t.Error("the leg of the wrong front end ends")
		}
		f.servers[1].HandlePeerLoss("r0")
		waitFor(t, func() bool { return len(f.servers[1].LocalLegs()) == 0 })
		f.requireRescuedAnswer(b) // it was alive all the time
	}, rescues)
}

// TestRescueFails checks that three replicas that refuse a stream are asked, each in an epoch of its
// own, but none after an engine that got it and never answered or broke: the client then gets an error
// event.
func TestRescueFails(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter, *http.Request){
		"refused": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusBadRequest) },
		"broken":  breaks,
		"silent":  silent,
	} {
		runInBubble(t, name, func(t *testing.T) {
			defer within(t, 5*time.Second)()
			f := newFleet(t, 5, rescues, configured(func(c *Config) { c.RescueTimeout = 100 * time.Millisecond }))
			rs := f.rescuer
			b := f.startStream(longRequest)
			for _, e := range f.engines[1:] {
				e.set(nil, func(w http.ResponseWriter, r *http.Request) {
					io.Copy(io.Discard, r.Body)
					answer(w, r)
				})
			}
			f.engines[0].killAll()
			if got := <-b.got; !strings.Contains(got, cutErrorPrefix) || strings.Contains(got, "[DONE]") {
				t.Errorf("the stream ends with %s", got)
			}
			want := []policies.ReplicaID{"r0"}
			if name == "refused" {
				want = []policies.ReplicaID{"r0", "r1", "r2"}
			}
			rs.mu.Lock()
			defer rs.mu.Unlock()
			if len(rs.asked) != len(want) || !slices.Equal(rs.asked[len(want)-1], want) {
				t.Errorf("asked with %v", rs.asked)
			}
			f.requireIdle()
		})
	}
}

// TestOwnEngineBack checks that a stream that no other replica can take goes on
// when the own engine is back.
func TestOwnEngineBack(t *testing.T) {
	runFleet(t, 1, func(t *testing.T, f *fleet) {
		f.rescuer.setTargets()
		b := f.startStream(longRequest)
		f.engines[0].unhealthy.Store(true)
		f.waitForReady(false) // its legs are aborted though they are not cut
		waitFor(t, func() bool { h, _ := f.Holder(b.id); return h.Pending })
		f.engines[0].unhealthy.Store(false)
		f.requireRescuedAnswer(b)
	}, rescues)
}

// TestEngineIgnoresProbes checks that an engine that answers no health checks is
// kept while it generates, and given up when it does neither: streams go on
// elsewhere, and requests that it has not begun to answer begin there.
func TestEngineIgnoresProbes(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		defer within(t, 3*time.Second)()
		e := f.engines[0]
		b := f.startStream(strings.Replace(longRequest, "70", "600", 1)) // for a second
		e.ignoresProbes.Store(true)
		waitFor(t, func() bool { return e.ignoredProbes.Load() >= 3 })
		if !f.Status().EngineReady {
			t.Error("an engine that generates is taken to be away")
		}
		e.set(func(_ int, r *http.Request) { <-r.Context().Done() }, nil)
		answer := f.start(`{"prompt":"x","stream":true}`)
		f.waitForLegs(2)
		f.engines[1].set(nil, nil)
		_, r, _ := f.findLeg(b.id)
		e.freeze(r.Name)
		f.waitForReady(false)
		if body := <-answer; !strings.HasSuffix(body, "[DONE]\n\n") {
			t.Errorf("a request that was not begun is answered %s", body)
		}
		e.set(nil, nil)
		e.ignoresProbes.Store(false)
		f.waitForReady(true)
		f.requireRescuedAnswer(b)
	}, rescues, configured(func(c *Config) { c.HealthTimeout, c.HangTimeout = 100*time.Millisecond, 100*time.Millisecond }))
}

// TestPinnedRequestIsNotRescued checks that a stream that is tied to its engine
// ends when the engine dies, and not before.
func TestPinnedRequestIsNotRescued(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		f.setPace(time.Millisecond)
		got := f.start(`{"prompt":"x","max_tokens":200,"stream":true,"stop":["q"]}`)
		f.waitForStream(3)
		f.engines[0].unhealthy.Store(true)
		f.waitForReady(false)
		select {
		case body := <-got:
			t.Errorf("an engine that is not well loses it: %s", body)
		default:
		}
		f.engines[0].killAll()
		if body := <-got; !strings.Contains(body, cutErrorPrefix) {
			t.Error(body)
		}
		if len(f.rescuer.asked) > 0 {
			t.Error("it was to be rescued")
		}
	}, rescues)
}

// TestHolderLostDuringMigration loses the holder while a migration waits for its
// target: the stream goes on with the leg of the target, or is rescued if there
// is none.
func TestHolderLostDuringMigration(t *testing.T) {
	for _, brings := range []bool{true, false} {
		for _, live := range []bool{true, false} {
			runInBubble(t, fmt.Sprint("brings ", brings, ", live ", live), func(t *testing.T) {
				f := newFleet(t, 3, rescues)
				b := f.startStream(longRequest)
				f.rescuer.setTargets(f.target(2))
				held, let := make(chan struct{}), make(chan struct{})
				f.engines[1].set(func(n int, r *http.Request) {
					if n > 0 {
						return
					}
					close(held)
					if <-let; !brings {
						panic(http.ErrAbortHandler)
					}
				}, nil)
				moved := f.begin(b.id, live)
				<-held
				f.engines[0].killAll()
				close(let)
				if err := <-moved; (err == nil) != brings {
					t.Errorf("the migration ends with %v", err)
				}
				f.requireRescuedAnswer(b)
			})
		}
	}
}

// TestRandomFaults migrates streams in all ways, several at a time, while engines
// die: each client reads the answer that it would have got without that.
func TestRandomFaults(t *testing.T) {
	runFleet(t, 4, func(t *testing.T, f *fleet) {
		body := func(n int) string {
			return fmt.Sprintf(`{"model":"m","prompt":"%d","max_tokens":100,"stream":true,"stream_options":{"include_usage":true}}`, n)
		}
		const streams = 12
		var want [streams]string
		for n := range want {
			want[n] = f.directAnswer("/v1/completions", body(n))
		}
		f.setPace(5 * time.Millisecond)
		var clients, chaos sync.WaitGroup
		over := make(chan struct{})
		for n := range want {
			clients.Go(func() {
				if got := f.tryPost("/v1/completions", body(n)); withoutCached(got) != withoutCached(want[n]) {
					t.Errorf("stream %d: %s", n, firstDifference(withoutCached(got), withoutCached(want[n])))
				}
			})
		}
		var hops, deaths atomic.Int64
		killed := make(map[string]int) // by stream; used by the goroutine that kills
		for seed := range uint64(4) {
			chaos.Go(func() {
				rng := rand.New(rand.NewPCG(seed, 7))
				for {
					select {
					case <-over:
						return
					case <-time.After(time.Duration(rng.IntN(4)) * time.Millisecond):
					}
					var all []*Stream
					f.EachStream(func(s *Stream) bool { all = append(all, s); return true })
					if len(all) == 0 {
						continue
					}
					s := all[rng.IntN(len(all))]
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rng.IntN(500))*time.Millisecond)
					var err error
					switch to := rng.IntN(4); {
					case seed == 3 && deaths.Load() < 12 && killed[s.id] < session.MaxLosses-1:
						// One leg at a time, and none of a stream that may not lose
						// another engine.
						if _, r, ok := f.findLeg(s.id); ok {
							deaths.Add(1)
							killed[s.id]++
							f.engines[f.index(s.currentHolder().Replica)].kill(r.Name)
							if err := testkit.WaitUntil("the rescue", func() bool { h, ok := f.Holder(s.id); return !ok || !h.Pending }); err != nil {
								t.Error(err)
							}
						}
						err = session.ErrHolderLost
					case rng.IntN(2) == 0:
						_, err = f.migrateLive(ctx, s.id, to, func(m *Migration) {
							if rng.IntN(4) == 0 {
								m.Hash++
							}
						})
					default:
						_, err = f.migrateReprompt(ctx, s.id, to)
					}
					if cancel(); err == nil {
						hops.Add(1)
					}
				}
			})
		}
		clients.Wait()
		close(over)
		chaos.Wait()
		for _, e := range f.engines {
			e.clearReservations()
		}
		f.requireIdle()
		if hops.Load() < 20 || deaths.Load() < 6 {
			t.Errorf("only %d moves and %d deaths", hops.Load(), deaths.Load())
		}
	}, rescues)
}

// TestRescueReport checks the report of a stream that goes on elsewhere.
func TestRescueReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer within(t, 10*time.Second)()
		reports := make(chan Rescue, 1)
		f := newFleet(t, 2, rescues, configured(func(c *Config) {
			c.HangTimeout, c.OnRescue = 2*time.Second, func(r Rescue) { reports <- r }
		}))
		b := f.startStream(longRequest)
		_, r, _ := f.findLeg(b.id)
		f.engines[0].freeze(r.Name)
		got := <-reports
		if got.Stream != b.id || got.Epoch != 2 || got.From != "r0" || got.To != "r1" || got.Length == 0 || got.Duration <= 0 || got.Start.IsZero() || got.Err != nil {
			t.Errorf("%+v", got)
		}
		answer := <-b.got
		if withoutCached(answer) != withoutCached(b.want) || !strings.Contains(answer, `"cached_tokens":null`) {
			t.Errorf("got %s\nwant %s with unknown cached tokens", answer, b.want)
		}
		f.requireIdle()
		flow := f.servers[1].Status().Flow
		if sum(flow.Arrivals) != 0 || sum(flow.Prefill) <= 0 || sum(flow.Weight) <= 0 {
			t.Errorf("a rescue is prefill without an arrival: %+v", flow)
		}
	})
}

// TestRescueDistrustsEarlierProbes checks that a health check which began before the engine was lost, and is answered
// after it, does not make the stream go on there, and the report of a stream that finds no replica.
func TestRescueDistrustsEarlierProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reports := make(chan Rescue, 1)
		f := newFleet(t, 1, rescues, configured(func(c *Config) {
			c.RescueTimeout, c.OnRescue = 3*time.Second, func(r Rescue) { reports <- r }
		}))
		f.rescuer.setTargets()
		b := f.startStream(longRequest)
		h := &heldProbe{make(chan struct{}), make(chan struct{})}
		f.engines[0].heldProbe.Store(h)
		<-h.arrived
		f.engines[0].unhealthy.Store(true)
		f.engines[0].killAll()
		waitFor(t, func() bool { h, _ := f.Holder(b.id); return h.Pending })
		close(h.release)
		if got := <-reports; got.Stream != b.id || got.From != "r0" || got.To != "" || got.Err == nil {
			t.Errorf("%+v", got)
		}
		<-b.got
		f.requireIdle()
	})
}
