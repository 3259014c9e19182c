package frontend

import (
	"context"
	"fmt"
	"hash/maphash"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/httpserver"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/internal/enginestate"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

// hang stops the engine's core as a stuck GPU kernel does: no token comes any more, while
// /health answers 200 and requests are taken. The returned function revives it.
func (e *engine) hang(t testing.TB) (revive func()) {
	stuck := make(chan struct{})
	e.set(func(_ int, r *http.Request) {
		select {
		case <-stuck:
		case <-r.Context().Done():
		}
	}, nil)
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range e.runs {
		r.mu.Lock()
		if r.frozen == nil {
			r.frozen = make(chan struct{})
		}
		r.mu.Unlock()
	}
	return func() {
		close(stuck)
		e.set(nil, nil)
	}
}

// start is call for a completion at r0.
func (f *fleet) start(body string) chan string {
	return f.servers[0].call("POST", "/v1/completions", body)
}

// waitForLegs waits until r0's engine has n requests.
func (f *fleet) waitForLegs(n int) {
	f.t.Helper()
	waitFor(f.t, func() bool { return len(f.servers[0].LocalLegs()) == n })
}

const notStreamed = `{"prompt":"x","max_tokens":4,"logprobs":1}`

// TestHungEngine hangs an engine whose health checks still pass. Within the limit of package
// progress, streams go on at another engine, and so do requests without a token, of every
// kind; new requests are refused. When the core is revived, the replica serves again.
func TestHungEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := newRescueFleet(t, 2, nil)
		b := f.startRescuableStream()
		began := time.Now()
		revive := f.engines[0].hang(t)
		waiting := []chan string{f.start(longRequest), f.start(notStreamed), f.start(`{"prompt":"x","stream":true,"stop":["q"]}`)}
		f.waitForLegs(4)
		f.engines[1].set(nil, nil)
		f.servers[0].waitForReady(t, false)
		for i, got := range waiting {
			if body := <-got; !strings.HasPrefix(body, "200 ") {
				t.Errorf("request %d without a token is answered %s", i, body)
			}
		}
		if got := <-b.got; withoutCached(got) != withoutCached(b.want) {
			t.Errorf("got %s\nwant %s", got, b.want)
		}
		if took := time.Since(began); took < enginestate.MinPause || took > enginestate.MinPause+time.Second {
			t.Errorf("the requests of the hung engine went on after %v", took)
		}
		if got := f.servers[0].Status(); got.EngineReady || !got.EngineHung || got.EngineHangs != 1 || got.Load.Running+got.Load.Waiting != 0 {
			t.Errorf("the hung engine's replica reports %+v", got)
		}
		waitFor(t, f.servers[0].refusesConnections)
		time.Sleep(time.Minute) // all of which its health checks pass
		if f.servers[0].Status().EngineReady {
			t.Error("a hung engine is ready again before it generates")
		}
		revive()
		f.servers[0].waitForReady(t, true)
		f.requireIdle()
	})
}

// TestHungEngineWithoutRefuge checks that requests that no other replica can take get an error.
func TestHungEngineWithoutRefuge(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		defer within(t, 10*enginestate.MinPause)()
		e.hang(t)
		if resp, body := post(t, f.client, f.url, "/v1/completions", longRequest); resp.StatusCode != 502 || resp.Header.Get(length.RefusedHeader) != "" {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	})
}

// TestTokenizingIsNoHang checks that an engine which turns a text of 3 MiB into tokens for some seconds, and brings
// nothing meanwhile, is not found hung.
func TestTokenizingIsNoHang(t *testing.T) {
	runServer(t, func(c *Config) { c.MaxBody = 16 << 20 }, func(t *testing.T, e *engine, f *testServer) {
		post(t, f.client, f.url, "/v1/completions", longRequest) // the engine is not cold any more
		e.set(func(n int, _ *http.Request) {
			if n == 0 {
				time.Sleep(4 * enginestate.MinPause)
			}
		}, nil)
		body := `{"stream":true,"max_tokens":1,"prompt":"` + strings.Repeat("x", 3<<20) + `"}`
		if resp, answer := post(t, f.client, f.url, "/v1/completions", body); resp.StatusCode != http.StatusOK || !strings.Contains(answer, "[DONE]") {
			t.Errorf("%d %s", resp.StatusCode, answer)
		}
		if n := f.Status().EngineHangs; n != 0 {
			t.Errorf("found hung %d times", n)
		}
	})
}

// TestHungEngineWithoutMetrics hangs an engine as a whole while its metrics are being read, which must not
// delay the finding.
func TestHungEngineWithoutMetrics(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		post(t, f.client, f.url, "/v1/completions", longRequest) // the engine is not cold any more
		revive := e.hang(t)
		e.passthrough.Store(ptr(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
		f.engineFacts.mu.Lock()
		f.engineFacts.pace.Reset() // a read is due
		f.engineFacts.mu.Unlock()
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			tryPost(t, f.client, f.url, "/v1/completions", longRequest)
		}()
		began := time.Now()
		f.waitForReady(t, false)
		if took := time.Since(began); took > enginestate.MinPause+time.Second || !f.Status().EngineHung {
			t.Errorf("not ready after %v, hung: %v", took, f.Status().EngineHung)
		}
		revive()
		<-answered
	})
}

// TestMinPause checks that an engine hangs after Config.MinPause, before it has been away and after it.
func TestMinPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pause = 5 * time.Second
		e := newEngine(t)
		f := startServer(t, e.URL, func(c *Config) { c.MinPause = pause })
		for n := range uint64(2) {
			post(t, f.client, f.url, "/v1/completions", longRequest) // the engine is not cold any more
			revive, began := e.hang(t), time.Now()
			post(t, f.client, f.url, "/v1/completions", longRequest)
			if took := time.Since(began); took < pause || took > pause+time.Second || f.Status().EngineHangs != n+1 {
				t.Errorf("hang %d: found after %v, %+v", n, took, f.Status())
			}
			revive()
			f.waitForReady(t, true)
			e.unhealthy.Store(true)
			f.waitForReady(t, false)
			e.unhealthy.Store(false)
			f.waitForReady(t, true)
		}
	})
}

// TestHungPeer checks a request that was placed at a peer whose engine hangs: the own engine serves it. A
// request that two engines have lost is not sent to a third, by proxies neither: it may be the one that
// hangs them.
func TestHungPeer(t *testing.T) {
	for ownHangs, want := range map[bool]string{false: "200  ", true: "502  "} {
		synctest.Test(t, func(t *testing.T) {
			p := new(placer)
			f, _ := newRescueFleet(t, 4, func(c *Config) {
				if c.Replica == "r0" {
					c.Placer = p
				}
			})
			p.peer.Store(&f.servers[1].peer)
			f.engines[1].hang(t)
			if ownHangs {
				f.engines[0].hang(t)
			}
			if got := <-f.start(longRequest); !strings.HasPrefix(got, want) || f.engines[2].calls.Load()+f.engines[3].calls.Load() != 0 {
				t.Errorf("the own engine hangs too: %v: %s", ownHangs, got)
			}
		})
	}
}

// TestLongPrefillIsProgress checks an engine that brings nothing while it computes a long prompt, as
// long as its profile predicts.
func TestLongPrefillIsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := newRescueFleet(t, 2, func(c *Config) { c.Cost = policies.Cost{D0: 1e-3, D2: 1e-3} })
		<-f.start(longRequest)
		prompt := `{"max_tokens":4,"stream":true,"prompt":[` + strings.Repeat("1,", 9999) + `1]}`
		f.engines[0].set(func(n int, _ *http.Request) {
			if n == 0 {
				time.Sleep(20 * time.Second) // twice what is predicted
			}
		}, nil)
		if got := <-f.start(prompt); !strings.HasPrefix(got, "200 ") || f.engines[0].calls.Load() != 2 || f.servers[0].Status().EngineHangs > 0 {
			t.Errorf("engine calls %d: %.200s", f.engines[0].calls.Load(), got)
		}
	})
}

// TestPreemption checks a stream that pauses for a minute because its engine, whose KV cache is full,
// preempted it: the engine goes on with others, and so the stream waits for it. One that pauses although
// there is room is given up after HangTimeout.
func TestPreemption(t *testing.T) {
	for _, full := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f, _ := newRescueFleet(t, 2, func(c *Config) {
				if c.KVTokens, c.HealthInterval = 1<<20, time.Second; full {
					c.KVTokens = 50
				}
			})
			b := f.startRescuableStream()
			_, leg, _ := f.findLeg(b.id)
			f.engines[0].set(func(int, *http.Request) { time.Sleep(100 * time.Millisecond) }, nil)
			others := f.start(strings.Replace(longRequest, "70", "700", 1))
			f.waitForLegs(2)
			f.engines[0].freeze(leg.Name)
			time.Sleep(time.Minute)
			if rescued := f.engines[1].calls.Load() == 1; rescued == full {
				t.Errorf("KV cache full: %v; the stream that paused was rescued: %v", full, rescued)
			}
			f.engines[0].thaw(leg.Name)
			f.requireRescuedAnswer(b)
			if got := <-others; !strings.HasSuffix(got, "[DONE]\n\n") || f.servers[0].Status().EngineHangs > 0 {
				t.Error(got)
			}
		})
	}
}

// TestFrozenStreamIsNoHang checks that an engine whose only request a migration has stopped is not
// found hung, and that it is once the request goes on without a token.
func TestFrozenStreamIsNoHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := newRescueFleet(t, 2, nil)
		b := f.startRescuableStream()
		_, leg, _ := f.findLeg(b.id)
		f.engines[0].freeze(leg.Name)
		f.servers[0].FreezeLeg(leg.Name, true)
		time.Sleep(2 * enginestate.MinPause)
		if f.servers[0].Status().EngineHangs > 0 {
			t.Error("the engine of a frozen stream counts as hung")
		}
		f.servers[0].FreezeLeg(leg.Name, false)
		f.servers[0].waitForReady(t, false)
		f.requireRescuedAnswer(b)
	})
}

// TestAttackSlowClientIsNoHang checks that an engine whose only client does not read is not found hung,
// whatever kind of answer it is: that client would empty the whole replica.
func TestAttackSlowClientIsNoHang(t *testing.T) {
	for name, c := range map[string][2]string{
		"stream":         {"/v1/completions", `{"prompt":"x","max_tokens":4000,"stream":true}`},
		"whole answer":   {"/v1/completions", notStreamed},
		"passed through": {"/v1/embeddings", `{"input":"x"}`},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 1, nil)
			large := func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", "application/json")
				// The reverse proxy flushes the header on a timer's goroutine, by a mutex that a write which
				// waits for the client holds: a bubble's time stands still while a goroutine waits for a mutex.
				if err := http.NewResponseController(w).Flush(); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Millisecond)
				io.WriteString(w, strings.Repeat(" ", 4<<20))
			}
			f.engines[0].countSteps(new(atomic.Int64), large)
			f.servers[0].restart(t, f.engines[0])
			f.servers[0].answers = httpserver.NewBudget(1 << 10) // else the engine ends the answer
			<-f.start(longRequest)
			if name == "whole answer" {
				f.engines[0].set(nil, large)
			}
			resp := f.postSlowly(c[0], c[1])
			time.Sleep(10 * enginestate.MinPause)
			if s := f.servers[0].Status(); s.EngineHangs > 0 || s.Load.Running != 1 {
				t.Errorf("%s: the engine of a client that does not read counts as hung: %+v", name, s)
			}
			resp.Body.Close()
		})
	}
}

// TestEngineCounters checks an engine from which no token is to be expected for long, because its answers
// come as a whole: while the counters of its core move it makes progress, and when they stand still
// it is hung.
func TestEngineCounters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var steps, noise atomic.Int64
		counters := func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/metrics" {
				if e := r.Header.Get("Accept-Encoding"); e != "" {
					t.Errorf("the engine is asked to encode its metrics: %s", e)
				}
				fmt.Fprintf(w, "# HELP x\nvllm:num_requests_waiting{} %d\nvllm:iteration_tokens_total_count{engine=\"0\"} %d\n", noise.Add(1), steps.Load())
			}
		}
		f, _ := newRescueFleet(t, 2, nil)
		f.engines[0].passthrough.Store(ptr(counters))
		f.servers[0].restart(t, f.engines[0])
		<-f.start(longRequest)
		f.engines[0].set(nil, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			for range 40 {
				time.Sleep(500 * time.Millisecond)
				steps.Add(1)
			}
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, "{}")
		})
		if got := <-f.start(notStreamed); got != "200  {}" {
			t.Error(got)
		}
		f.engines[0].hang(t)
		began := time.Now()
		if got := <-f.start(notStreamed); !strings.HasPrefix(got, "200 ") || time.Since(began) > 2*enginestate.MinPause {
			t.Errorf("after %v: %s", time.Since(began), got)
		}
	})
}

// TestRestartedEngineIsCold checks that an engine that starts again gets as much time for its first
// requests as at its first start, whatever the one before it has generated.
func TestRestartedEngineIsCold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := newRescueFleet(t, 2, nil)
		<-f.start(longRequest)
		f.servers[0].restart(t, f.engines[0])
		f.engines[0].set(func(n int, _ *http.Request) {
			if n == 0 {
				time.Sleep(3 * enginestate.MinPause)
			}
		}, nil)
		if got := <-f.start(longRequest); !strings.HasPrefix(got, "200 ") || f.servers[0].Status().EngineHangs > 0 {
			t.Errorf("an engine that compiles its kernels counts as hung: %.200s", got)
		}
	})
}

// TestCountersDeadline checks that an engine that does not answer is not asked for its counters for
// longer than for its health: no other sample is taken meanwhile.
func TestCountersDeadline(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		e.passthrough.Store(ptr(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
		defer within(t, 2*f.cfg.HealthTimeout)()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if s := f.readCounters(ctx, maphash.MakeSeed()); s.err == nil || ctx.Err() != nil {
			t.Errorf("ended with %v, %v", s.err, ctx.Err())
		}
	})
}

func ptr[T any](v T) *T { return &v }

// slowDisk is a log whose writer waits: the goroutine that writes a record stands still, as all
// do in a process that gets no CPU.
type slowDisk struct {
	testkit.Log
	wait atomic.Int64
}

func (d *slowDisk) Write(b []byte) (int, error) {
	n, err := d.Log.Write(b)
	time.Sleep(time.Duration(d.wait.Load()))
	return n, err
}

// TestStarvedHealthChecks checks that a health check that times out while the server itself stands
// still says nothing about the engine, and that two that time out afterwards do.
func TestStarvedHealthChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(slowDisk)
		f := newFleet(t, 1, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
		defer f.postSlowly("/v1/completions", `{"prompt":"x","max_tokens":4000,"stream":true}`).Body.Close()
		e, srv := f.engines[0], f.servers[0]
		metrics := &statingEngine{now: expected}
		e.passthrough.Store(ptr(metrics.answer))
		waitFor(t, func() bool { return metrics.readCount() > 0 })
		began := time.Now()
		log.wait.Store(int64(2 * srv.cfg.HealthTimeout))
		e.ignoresProbes.Store(true)
		time.Sleep(srv.cfg.HealthTimeout / 2) // a check waits for its answer
		metrics.set(stated{started: 200})     // which the server logs on the goroutine that watches the engine
		srv.waitForReady(t, false)
		// A check, with the time for which the server stands still, and two checks.
		if took := time.Since(began); took < 4*srv.cfg.HealthTimeout {
			t.Errorf("the engine is away after %v\n%s", took, log)
		}
	})
}

// TestPauseForTransfer pauses an engine for four seconds: it is hung, unless its KV travels then, as in
// the first handshake of NIXL.
func TestPauseForTransfer(t *testing.T) {
	const pause = 4 * time.Second
	for name, hangs := range map[string]uint64{"while its KV travels": 0, "alone": 1} {
		runInBubble(t, name, func(t *testing.T) {
			f, c := newHandoffFleet(t, 2, nil)
			c.fetching = func(*http.Request) { time.Sleep(2 * pause) }
			var paused atomic.Bool
			f.engines[0].set(func(int, *http.Request) {
				for paused.Load() {
					time.Sleep(10 * time.Millisecond)
				}
				time.Sleep(2 * time.Millisecond)
			}, nil)
			answer, moved := f.start(longRequest), make(chan error, 1)
			s := f.waitForStream(4)
			if hangs > 0 {
				moved <- nil
			} else {
				go func() {
					_, err := f.handOff(s.id, 1)
					moved <- err
				}()
				waitFor(t, func() bool { return c.fetched.Load() > 0 })
			}
			paused.Store(true)
			time.Sleep(pause)
			if got := f.servers[0].Status().EngineHangs; got != hangs {
				t.Errorf("hung %d times, want %d", got, hangs)
			}
			paused.Store(false)
			<-answer
			<-moved
		})
	}
}
