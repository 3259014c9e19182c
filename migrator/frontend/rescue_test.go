package frontend

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
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

// rescuer is a fake Rescuer: it returns the first target that was not tried.
type rescuer struct {
	mu      sync.Mutex
	targets []policies.Target
	asked   [][]policies.ReplicaID
}

func (r *rescuer) Rescue(_ policies.Request, tried []policies.ReplicaID) (policies.Target, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, slices.Clone(tried))
	for _, t := range r.targets {
		if !slices.Contains(tried, t.Replica) {
			return t, true
		}
	}
	return policies.Target{}, false
}

func (r *rescuer) setTargets(targets ...policies.Target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.targets = targets
}

var _ Rescuer = (*rescuer)(nil)

// newRescueFleet returns a fleet whose r0 has a Rescuer with all replicas as
// targets.
func newRescueFleet(t *testing.T, n int, change func(*Config)) (*fleet, *rescuer) {
	r := new(rescuer)
	f := newFleet(t, n, func(c *Config) {
		if c.Replica == "r0" {
			c.Rescuer = r
		}
		if change != nil {
			change(c)
		}
	})
	var all []policies.Target
	for i := range n {
		all = append(all, f.target(i))
	}
	r.setTargets(all...)
	return f, r
}

var cachedValue = regexp.MustCompile(`"cached_tokens":(\d+|null)`)

// withoutCached removes from an answer what may change when its engine dies: only
// that engine knew how much of the prompt was cached.
func withoutCached(s string) string { return cachedValue.ReplaceAllString(withoutIDs(s), "") }

// rescueOnce kills the engine of a stream once it has that many tokens. It returns the
// answer and the engine's own.
func (f *fleet) rescueOnce(kind [2]string, output policies.Tokens) (got, want string) {
	f.t.Helper()
	s := f.startKind(kind, output)
	f.engines[0].killAll()
	waitFor(f.t, func() bool { h, _ := f.servers[0].Holder(s.id); return h.Replica == "r1" && !h.Pending })
	return <-s.got, s.want
}

// TestRescue kills the engines of answers of every kind, at every length. Engines may put several tokens into one event,
// as they do for a slow reader: then the client has the text of all of them except for
// a character that the last one has begun.
func TestRescue(t *testing.T) {
	for _, group := range []int64{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			f, _ := newRescueFleet(t, 3, nil)
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
		})
	}
}

// startRescuableStream starts a stream of r0 that is long enough to lose its
// engine.
func (f *fleet) startRescuableStream() runningStream { return f.startStream(longRequest) }

// stays is a dialect that continues no request.
type stays struct{ vllm.Dialect }

func (stays) Continue(*openai.Resume, dialect.Continuation) []byte { return nil }

// TestStreamKeepsDialect moves and rescues a stream after its front end's engine has stopped saying how it was started.
func TestStreamKeepsDialect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := newRescueFleet(t, 3, nil)
		s := f.startRescuableStream()
		var now dialect.Dialect = stays{}
		f.servers[0].engineFacts.spoken.Store(&now)
		testkit.Must(f.migrateReprompt(t.Context(), s.id, 1))
		f.engines[1].killAll()
		f.requireRescuedAnswer(s)
	})
}

func (f *fleet) requireRescuedAnswer(b runningStream) {
	f.t.Helper()
	if got := <-b.got; withoutCached(got) != withoutCached(b.want) {
		f.t.Errorf("got %s\nwant %s", got, b.want)
	}
	f.requireIdle()
}

// TestPeerLost checks what a front end does when a holder is gone, and a holder
// when a front end is.
func TestPeerLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, rs := newRescueFleet(t, 3, nil)
		b := f.startRescuableStream()
		testkit.Must(f.migrateLive(t.Context(), b.id, 1, nil))
		f.servers[0].HandlePeerLoss("r2") // holds nothing
		rs.setTargets(f.target(2))
		f.servers[0].HandlePeerLoss("r1") // although its engine goes on
		waitFor(t, func() bool { h, _ := f.servers[0].Holder(b.id); return h == Holder{Replica: "r2", Epoch: 3} })
		f.requireRescuedAnswer(b)

		// A front end that is gone: its leg here ends, and others stay.
		b = f.startRescuableStream()
		testkit.Must(f.migrateReprompt(t.Context(), b.id, 1))
		f.servers[1].HandlePeerLoss("r2")
		if len(f.servers[1].LocalLegs()) != 1 {
			t.Error("the leg of the wrong front end ends")
		}
		f.servers[1].HandlePeerLoss("r0")
		waitFor(t, func() bool { return len(f.servers[1].LocalLegs()) == 0 })
		f.requireRescuedAnswer(b) // it was alive all the time
	})
}

// TestForwardToLostPeer checks that a request which waits at a peer for its first
// token is served by the own engine when the peer is gone.
func TestForwardToLostPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := new(placer)
		f := newFleet(t, 2, func(c *Config) {
			if c.Replica == "r0" {
				c.Placer = p
			}
		})
		p.peer.Store(&f.servers[1].peer)
		f.engines[1].set(nil, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		})
		got := f.start(longRequest)
		waitFor(t, func() bool {
			return slices.Equal(f.servers[0].Holders(), []policies.ReplicaID{"r1"}) && len(f.servers[1].LocalLegs()) == 1
		})
		if r := f.servers[1].LocalLegs()[0]; r.Request.Output != 0 || r.FrontEnd != "r0" || r.Request.MaxOutput != 70 || r.Request.Model != "m" {
			t.Errorf("%+v", r)
		}
		f.servers[0].HandlePeerLoss("r1")
		if body := <-got; !strings.HasSuffix(body, "[DONE]\n\n") {
			t.Error(body)
		}
		f.requireIdle()
	})
}

// TestRescueFails checks that three replicas that refuse a stream are asked, each in an epoch of its
// own, but none after an engine that got it and never answered or broke: the client then gets an error
// event.
func TestRescueFails(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter, *http.Request){
		"refused": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusBadRequest) },
		"broken":  func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"silent":  func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		runInBubble(t, name, func(t *testing.T) {
			defer within(t, 5*time.Second)()
			f, rs := newRescueFleet(t, 5, func(c *Config) { c.RescueTimeout = 100 * time.Millisecond })
			b := f.startRescuableStream()
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
	synctest.Test(t, func(t *testing.T) {
		f, rs := newRescueFleet(t, 1, nil)
		rs.setTargets()
		b := f.startRescuableStream()
		f.engines[0].unhealthy.Store(true)
		f.servers[0].waitForReady(t, false) // its legs are aborted though they are not cut
		h, _ := f.servers[0].Holder(b.id)
		if !h.Pending {
			waitFor(t, func() bool { h, _ = f.servers[0].Holder(b.id); return h.Pending })
		}
		f.engines[0].unhealthy.Store(false)
		f.requireRescuedAnswer(b)
	})
}

// TestEngineIgnoresProbes checks that an engine that answers no health checks is
// kept while it generates, and given up when it does neither: streams go on
// elsewhere, and requests that it has not begun to answer begin there.
func TestEngineIgnoresProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer within(t, 3*time.Second)()
		f, _ := newRescueFleet(t, 2, func(c *Config) {
			c.HealthTimeout, c.HangTimeout = 100*time.Millisecond, 100*time.Millisecond
		})
		e := f.engines[0]
		b := f.startStream(strings.Replace(longRequest, "70", "600", 1)) // for a second
		e.ignoresProbes.Store(true)
		waitFor(t, func() bool { return e.ignoredProbes.Load() >= 3 })
		if !f.servers[0].Status().EngineReady {
			t.Error("an engine that generates is taken to be away")
		}
		e.set(func(_ int, r *http.Request) { <-r.Context().Done() }, nil)
		answer := f.start(`{"prompt":"x","stream":true}`)
		waitFor(t, func() bool { return len(f.servers[0].LocalLegs()) == 2 })
		f.engines[1].set(nil, nil)
		_, r, _ := f.findLeg(b.id)
		e.freeze(r.Name)
		f.servers[0].waitForReady(t, false)
		if body := <-answer; !strings.HasSuffix(body, "[DONE]\n\n") {
			t.Errorf("a request that was not begun is answered %s", body)
		}
		e.set(nil, nil)
		e.ignoresProbes.Store(false)
		f.servers[0].waitForReady(t, true)
		f.requireRescuedAnswer(b)
	})
}

// TestPinnedRequestIsNotRescued checks that a stream that is tied to its engine
// ends when the engine dies, and not before.
func TestPinnedRequestIsNotRescued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, rs := newRescueFleet(t, 2, nil)
		f.setPace(time.Millisecond)
		got := f.start(`{"prompt":"x","max_tokens":200,"stream":true,"stop":["q"]}`)
		f.waitForStream(3)
		f.engines[0].unhealthy.Store(true)
		f.servers[0].waitForReady(t, false)
		select {
		case body := <-got:
			t.Errorf("an engine that is not well loses it: %s", body)
		default:
		}
		f.engines[0].killAll()
		if body := <-got; !strings.Contains(body, cutErrorPrefix) {
			t.Error(body)
		}
		if len(rs.asked) > 0 {
			t.Error("it was to be rescued")
		}
	})
}

// TestHolderLostDuringMigration loses the holder while a migration waits for its
// target: the stream goes on with the leg of the target, or is rescued if there
// is none.
func TestHolderLostDuringMigration(t *testing.T) {
	for _, brings := range []bool{true, false} {
		for _, live := range []bool{true, false} {
			runInBubble(t, fmt.Sprint("brings ", brings, ", live ", live), func(t *testing.T) {
				f, rs := newRescueFleet(t, 3, nil)
				b := f.startRescuableStream()
				rs.setTargets(f.target(2))
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
				moved := make(chan error)
				go func() {
					var err error
					if live {
						_, err = f.migrateLive(t.Context(), b.id, 1, nil)
					} else {
						_, err = f.migrateReprompt(t.Context(), b.id, 1)
					}
					moved <- err
				}()
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
	synctest.Test(t, func(t *testing.T) {
		f, _ := newRescueFleet(t, 4, nil)
		body := func(n int) string {
			return fmt.Sprintf(`{"model":"m","prompt":"%d","max_tokens":100,"stream":true,"stream_options":{"include_usage":true}}`, n)
		}
		const streams = 12
		var want [streams]string
		for n := range want {
			_, want[n] = post(t, f.servers[0].client, strings.TrimPrefix(f.engines[0].URL, "http://"), "/v1/completions", body(n))
		}
		f.setPace(5 * time.Millisecond)
		var clients, chaos sync.WaitGroup
		over := make(chan struct{})
		for n := range want {
			clients.Go(func() {
				if _, got := tryPost(t, f.servers[0].client, f.servers[0].url, "/v1/completions", body(n)); withoutCached(got) != withoutCached(want[n]) {
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
					f.servers[0].EachStream(func(s *Stream) bool { all = append(all, s); return true })
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
							if err := testkit.WaitUntil("the rescue", func() bool { h, ok := f.servers[0].Holder(s.id); return !ok || !h.Pending }); err != nil {
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
		for i := range f.engines {
			f.clearReservations(i)
		}
		f.requireIdle()
		if hops.Load() < 20 || deaths.Load() < 6 {
			t.Errorf("only %d moves and %d deaths", hops.Load(), deaths.Load())
		}
	})
}
