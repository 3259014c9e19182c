package frontend

import (
	"context"
	"fmt"
	"hash/maphash"
	"io"
	"log/slog"
	"net/http"
	"slices"
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

const notStreamed = `{"prompt":"x","max_tokens":4,"logprobs":1}`

// TestHungEngine hangs an engine whose health checks still pass. Within the limit of package
// enginestate, streams go on at another engine, and so do requests without a token, of every
// kind; new requests are refused. When the core is revived, the replica serves again.
func TestHungEngine(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		b := f.startStream(longRequest)
		began := time.Now()
		revive := f.engines[0].hang()
		waiting := []chan string{f.start(longRequest), f.start(notStreamed), f.start(`{"prompt":"x","stream":true,"stop":["q"]}`)}
		f.waitForLegs(4)
		f.engines[1].set(nil, nil)
		f.waitForReady(false)
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
		if got := f.Status(); got.EngineReady || !got.EngineHung || got.EngineHangs != 1 || got.Load.Running+got.Load.Waiting != 0 {
			t.Errorf("the hung engine's replica reports %+v", got)
		}
		waitFor(t, f.refusesConnections)
		time.Sleep(time.Minute) // all of which its health checks pass
		if f.Status().EngineReady {
			t.Error("a hung engine is ready again before it generates")
		}
		revive()
		f.waitForReady(true)
		f.requireIdle()
	}, rescues)
}

// TestHungEngineWithoutRefuge checks that requests that no other replica can take get an error.
func TestHungEngineWithoutRefuge(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		defer within(t, 10*enginestate.MinPause)()
		e.hang()
		if resp, body := f.post("/v1/completions", longRequest); resp.StatusCode != 502 || resp.Header.Get(length.RefusedHeader) != "" {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	})
}

// TestTokenizingIsNoHang checks that an engine which turns a text of 3 MiB into tokens for some seconds, and brings
// nothing meanwhile, is not found hung.
func TestTokenizingIsNoHang(t *testing.T) {
	runServer(t, func(c *Config) { c.MaxBody = 16 << 20 }, func(t *testing.T, e *engine, f *testServer) {
		f.post("/v1/completions", longRequest) // the engine is not cold any more
		e.set(func(n int, _ *http.Request) {
			if n == 0 {
				time.Sleep(4 * enginestate.MinPause)
			}
		}, nil)
		body := `{"stream":true,"max_tokens":1,"prompt":"` + strings.Repeat("x", 3<<20) + `"}`
		if resp, answer := f.post("/v1/completions", body); resp.StatusCode != http.StatusOK || !strings.Contains(answer, "[DONE]") {
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
		f.post("/v1/completions", longRequest) // the engine is not cold any more
		revive := e.hang()
		e.pass(silent)
		f.engineFacts.mu.Lock()
		f.engineFacts.pace.Reset() // a read is due
		f.engineFacts.mu.Unlock()
		answered := f.start(longRequest)
		began := time.Now()
		f.waitForReady(false)
		if took := time.Since(began); took > enginestate.MinPause+time.Second || !f.Status().EngineHung {
			t.Errorf("not ready after %v, hung: %v", took, f.Status().EngineHung)
		}
		revive()
		<-answered
	})
}

// TestMinPause checks that an engine hangs after Config.MinPause, before it has been away and after it.
func TestMinPause(t *testing.T) {
	const pause = 5 * time.Second
	runServer(t, func(c *Config) { c.MinPause = pause }, func(t *testing.T, e *engine, f *testServer) {
		for n := range uint64(2) {
			f.post("/v1/completions", longRequest) // the engine is not cold any more
			revive, began := e.hang(), time.Now()
			f.post("/v1/completions", longRequest)
			if took := time.Since(began); took < pause || took > pause+time.Second || f.Status().EngineHangs != n+1 {
				t.Errorf("hang %d: found after %v, %+v", n, took, f.Status())
			}
			revive()
			f.waitForReady(true)
			f.restart(e, nil)
		}
	})
}

// TestHungPeer checks a request that was placed at a peer whose engine hangs: the own engine serves it. A
// request that two engines have lost is not sent to a third, by proxies neither: it may be the one that
// hangs them.
func TestHungPeer(t *testing.T) {
	for ownHangs, want := range map[bool]string{false: "200  ", true: "502  "} {
		runFleet(t, 4, func(t *testing.T, f *fleet) {
			f.placers[0].sendTo(f.target(1))
			f.engines[1].hang()
			if ownHangs {
				f.engines[0].hang()
			}
			if got := <-f.start(longRequest); !strings.HasPrefix(got, want) || f.engines[2].calls.Load()+f.engines[3].calls.Load() != 0 {
				t.Errorf("the own engine hangs too: %v: %s", ownHangs, got)
			}
		}, places, rescues)
	}
}

// TestLongPrefillIsProgress checks an engine that brings nothing while it computes a long prompt, as
// long as its profile predicts.
func TestLongPrefillIsProgress(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		<-f.start(longRequest)
		prompt := `{"max_tokens":4,"stream":true,"prompt":[` + strings.Repeat("1,", 9999) + `1]}`
		f.engines[0].set(func(n int, _ *http.Request) {
			if n == 0 {
				time.Sleep(20 * time.Second) // twice what is predicted
			}
		}, nil)
		if got := <-f.start(prompt); !strings.HasPrefix(got, "200 ") || f.engines[0].calls.Load() != 2 || f.Status().EngineHangs > 0 {
			t.Errorf("engine calls %d: %.200s", f.engines[0].calls.Load(), got)
		}
	}, rescues, configured(func(c *Config) { c.Cost = policies.Cost{D0: 1e-3, D2: 1e-3} }))
}

// TestPreemption checks a stream that pauses for a minute because its engine, whose KV cache is full,
// preempted it: the engine goes on with others, and so the stream waits for it. One that pauses although
// there is room is given up after HangTimeout, also where a peer runs it.
func TestPreemption(t *testing.T) {
	for _, test := range []struct {
		full   bool
		holder int
	}{{true, 0}, {false, 0}, {true, 1}, {false, 1}} {
		runFleet(t, 2, func(t *testing.T, f *fleet) {
			if test.holder == 1 {
				f.placers[0].sendTo(f.target(1))
			}
			b := f.startStream(longRequest)
			_, leg, _ := f.findLeg(b.id)
			holder, other := f.engines[test.holder], f.engines[1-test.holder]
			holder.set(func(int, *http.Request) { time.Sleep(100 * time.Millisecond) }, nil)
			others := f.start(strings.Replace(longRequest, "70", "700", 1))
			waitFor(t, func() bool { return len(f.servers[test.holder].LocalLegs()) == 2 })
			before := other.calls.Load()
			holder.freeze(leg.Name)
			time.Sleep(time.Minute)
			if rescued := other.calls.Load() == before+1; rescued == test.full {
				t.Errorf("%+v: the stream that paused was rescued: %v", test, rescued)
			}
			holder.thaw(leg.Name)
			f.requireRescuedAnswer(b)
			if got := <-others; !strings.HasSuffix(got, "[DONE]\n\n") || f.servers[test.holder].Status().EngineHangs > 0 {
				t.Error(got)
			}
		}, places, rescues, configured(func(c *Config) {
			if c.KVTokens, c.HealthInterval = 1<<20, time.Second; test.full {
				c.KVTokens = 50
			}
		}))
	}
}

// TestGivenUpStreams pauses streams of an engine that has room for them and goes on with another one.
// Each is given up after HangTimeout, for a reason that the log names. Two may have been unlucky; with
// the third the engine counts as hung.
func TestGivenUpStreams(t *testing.T) {
	for paused, hangs := range map[int]uint64{2: 0, 3: 1} {
		var log testkit.Log
		runFleet(t, 2, func(t *testing.T, f *fleet) {
			want := "200  " + f.directAnswer("/v1/completions", longRequest)
			f.setPace(2 * time.Millisecond)
			var streams []chan string
			for range paused {
				streams = append(streams, f.start(longRequest))
			}
			waitFor(t, func() bool {
				legs := f.LocalLegs()
				return len(legs) == paused && !slices.ContainsFunc(legs, func(l LocalLeg) bool { return l.Request.Output < 4 })
			})
			for _, leg := range f.LocalLegs() {
				f.engines[0].freeze(leg.Name)
			}
			f.engines[0].set(func(int, *http.Request) { time.Sleep(100 * time.Millisecond) }, nil)
			other := f.start(strings.Replace(longRequest, "70", "700", 1))
			for _, stream := range streams {
				if got := <-stream; withoutCached(got) != withoutCached(want) {
					t.Errorf("got %s\nwant %s", got, want)
				}
			}
			<-other
			if n := f.Status().EngineHangs; n != hangs {
				t.Errorf("%d streams paused: the engine was found hung %d times", paused, n)
			}
			if n := log.Count("although it has room"); n != paused {
				t.Errorf("%d of %d pauses are named:\n%s", n, paused, &log)
			}
			f.requireIdle()
		}, rescues, configured(func(c *Config) { c.KVTokens, c.Logger = 1<<20, log.Logger() }))
	}
}

// TestFirstTokenIsNoPause checks that HangTimeout applies to the middle of an answer only: a stream may
// wait for its first token while its engine goes on with others.
func TestFirstTokenIsNoPause(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		f.engines[0].set(func(int, *http.Request) { time.Sleep(100 * time.Millisecond) }, nil)
		other := f.start(strings.Replace(longRequest, "70", "700", 1))
		f.waitForLegs(1)
		f.engines[0].set(func(n int, _ *http.Request) {
			if n == 0 {
				time.Sleep(2 * defaultHangTimeout)
			}
		}, nil)
		if got := <-f.start(longRequest); !strings.HasPrefix(got, "200 ") || f.engines[1].calls.Load() != 0 {
			t.Errorf("the other engine has %d requests: %.200s", f.engines[1].calls.Load(), got)
		}
		<-other
	}, rescues, configured(func(c *Config) { c.KVTokens = 1 << 20 }))
}

// TestFrozenStreamIsNoHang checks that an engine whose only request a migration has stopped is not
// found hung, and that it is once the request goes on without a token.
func TestFrozenStreamIsNoHang(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		b := f.startStream(longRequest)
		_, leg, _ := f.findLeg(b.id)
		f.engines[0].freeze(leg.Name)
		f.FreezeLeg(leg.Name, true)
		time.Sleep(2 * enginestate.MinPause)
		if f.Status().EngineHangs > 0 {
			t.Error("the engine of a frozen stream counts as hung")
		}
		f.FreezeLeg(leg.Name, false)
		f.waitForReady(false)
		f.requireRescuedAnswer(b)
	}, rescues)
}

// TestAttackSlowClientIsNoHang checks that an engine whose only client does not read is not found hung,
// whatever kind of answer it is: that client would empty the whole replica.
func TestAttackSlowClientIsNoHang(t *testing.T) {
	for name, c := range map[string][2]string{
		"stream":         {"/v1/completions", `{"prompt":"x","max_tokens":4000,"stream":true}`},
		"whole answer":   {"/v1/completions", notStreamed},
		"passed through": {"/v1/embeddings", `{"input":"x"}`},
	} {
		runFleet(t, 1, func(t *testing.T, f *fleet) {
			large := func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", "application/json")
				io.WriteString(w, strings.Repeat(" ", 4<<20))
			}
			f.engines[0].countSteps(new(atomic.Int64), large)
			f.restart(f.engines[0], nil)
			f.answers = httpserver.NewBudget(1 << 10) // else the engine ends the answer
			<-f.start(longRequest)
			if name == "whole answer" {
				f.engines[0].set(nil, large)
			}
			resp := f.postSlowly(c[0], c[1])
			time.Sleep(10 * enginestate.MinPause)
			if s := f.Status(); s.EngineHangs > 0 || s.Load.Running != 1 {
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
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		var steps, noise atomic.Int64
		f.engines[0].pass(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/metrics" {
				if e := r.Header.Get("Accept-Encoding"); e != "" {
					t.Errorf("the engine is asked to encode its metrics: %s", e)
				}
				fmt.Fprintf(w, "# HELP x\nvllm:num_requests_waiting{} %d\nvllm:iteration_tokens_total_count{engine=\"0\"} %d\n", noise.Add(1), steps.Load())
			}
		})
		f.restart(f.engines[0], nil)
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
		f.engines[0].hang()
		began := time.Now()
		if got := <-f.start(notStreamed); !strings.HasPrefix(got, "200 ") || time.Since(began) > 2*enginestate.MinPause {
			t.Errorf("after %v: %s", time.Since(began), got)
		}
	}, rescues)
}

// TestRestartedEngineIsCold checks that an engine that starts again gets as much time for its first
// requests as at its first start, whatever the one before it has generated.
func TestRestartedEngineIsCold(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		<-f.start(longRequest)
		f.restart(f.engines[0], nil)
		f.engines[0].set(func(n int, _ *http.Request) {
			if n == 0 {
				time.Sleep(3 * enginestate.MinPause)
			}
		}, nil)
		if got := <-f.start(longRequest); !strings.HasPrefix(got, "200 ") || f.Status().EngineHangs > 0 {
			t.Errorf("an engine that compiles its kernels counts as hung: %.200s", got)
		}
	}, rescues)
}

// TestCountersDeadline checks that an engine that does not answer is not asked for its counters for
// longer than for its health: no other sample is taken meanwhile.
func TestCountersDeadline(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		e.pass(silent)
		defer within(t, 2*f.cfg.HealthTimeout)()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if s := f.readCounters(ctx, maphash.MakeSeed()); s.err == nil || ctx.Err() != nil {
			t.Errorf("ended with %v, %v", s.err, ctx.Err())
		}
	})
}

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
		f := newFleet(t, 1, configured(func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) }))
		defer f.postSlowly("/v1/completions", `{"prompt":"x","max_tokens":4000,"stream":true}`).Body.Close()
		e, srv := f.engines[0], f.servers[0]
		metrics := &statingEngine{now: expected}
		e.pass(metrics.answer)
		waitFor(t, func() bool { return metrics.readCount() > 0 })
		began := time.Now()
		log.wait.Store(int64(2 * srv.cfg.HealthTimeout))
		e.ignoresProbes.Store(true)
		time.Sleep(srv.cfg.HealthTimeout / 2) // a check waits for its answer
		metrics.set(stated{started: 200})     // which the server logs on the goroutine that watches the engine
		srv.waitForReady(false)
		// A check, with the time for which the server stands still, and two checks.
		if took := time.Since(began); took < 4*srv.cfg.HealthTimeout {
			t.Errorf("the engine is away after %v\n%s", took, log)
		}
	})
}

// TestHungEnginePassThrough hangs an engine that computes requests which are passed through
// unparsed. They count as its load, and as long as its counters move it makes progress. When they stand still,
// what has no answer gets an error: it may be what the engine hangs on.
func TestHungEnginePassThrough(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		var steps atomic.Int64
		stuck := make(chan struct{})
		e.countSteps(&steps, func(w http.ResponseWriter, r *http.Request) { <-stuck })
		defer close(stuck)
		f.restart(e, nil)
		if got := <-f.start(longRequest); !strings.HasPrefix(got, "200 ") {
			t.Fatal(got)
		}
		waiting := f.call("POST", "/v1/embeddings", `{"input":"`+strings.Repeat("word ", 100)+`"}`)
		waitFor(t, func() bool { return f.Status().Load.Waiting == 1 })
		if n := f.Status().Load.Promised; n < 50 || n > 500 {
			t.Errorf("100 words count as %d tokens", n)
		}
		for range 40 { // a long computation
			steps.Add(1)
			time.Sleep(enginestate.MinPause / 4)
		}
		if f.Status().EngineHangs > 0 {
			t.Error("an engine whose counters move counts as hung")
		}
		began := time.Now()
		if got := <-waiting; !strings.HasPrefix(got, "502  ") || time.Since(began) > 2*enginestate.MinPause {
			t.Errorf("after %v: %s", time.Since(began), got)
		}
		waitFor(t, func() bool { return f.Status().Load == policies.Load{} })
		if n := f.Status().EngineHangs; n != 1 {
			t.Errorf("the engine was found hung %d times", n)
		}
	})
}

// TestRefusalsAreNoProgress checks that what the HTTP server of a hung engine refuses does not pass for
// tokens of its core.
func TestRefusalsAreNoProgress(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		<-f.start(longRequest)
		f.engines[0].hang()
		waiting := f.start(longRequest)
		f.waitForLegs(1)
		f.engines[0].set(nil, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			w.WriteHeader(http.StatusBadRequest)
		})
		for range 20 {
			<-f.start(`{"prompt":"x","max_tokens":4,"logprobs":99}`)
			time.Sleep(enginestate.MinPause / 8)
		}
		if f.Status().EngineHangs != 1 {
			t.Error("an engine that only refuses counts as one that makes progress")
		}
		<-waiting
	}, rescues)
}

// TestHungEngineEndsPinnedStreams checks a stream that no other engine can continue: it waits for the
// hung one, but its client is not left without an answer for as long as a prompt may take.
func TestHungEngineEndsPinnedStreams(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		e.set(func(int, *http.Request) { time.Sleep(10 * time.Millisecond) }, nil)
		got := f.start(`{"prompt":"x","max_tokens":7000,"stream":true,"stop":["q"]}`)
		waitFor(t, func() bool { return f.Status().Load.Running == 1 })
		began := time.Now()
		e.hang()
		answer := <-got
		if took := time.Since(began); took < f.cfg.HangTimeout || took > f.cfg.HangTimeout+2*enginestate.MinPause || !strings.Contains(answer, "makes no progress") {
			t.Errorf("after %v: %.300s", took, answer[max(0, len(answer)-300):])
		}
	})
}
