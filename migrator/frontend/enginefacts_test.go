package frontend

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/internal/handoff"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/admission"
)

// stated is what an engine states of itself; it has a KV cache of 1,000 tokens.
type stated struct {
	model   string
	context int
	started int // process_start_time_seconds
	usage   float64
	waiting int
	silent  bool // /metrics fails
}

var expected = stated{model: "m", context: 4096, started: 100}

// statingEngine answers what a server asks an engine.
type statingEngine struct {
	mu    sync.Mutex
	now   stated
	reads int // of /metrics
}

func (s *statingEngine) set(now stated) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now, s.reads = now, 0
}

func (s *statingEngine) readCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads
}

func (s *statingEngine) answer(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.URL.Path {
	case "/version":
		io.WriteString(w, `{"version":"0.32.0"}`)
	case "/v1/models":
		fmt.Fprintf(w, `{"data":[{"id":%q,"max_model_len":%d}]}`, s.now.model, s.now.context)
	case "/metrics":
		if s.reads++; s.now.silent {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, "vllm:cache_config_info{block_size=\"10\",num_gpu_blocks=\"100\"} 1\nvllm:kv_cache_usage_perc %g\nvllm:num_requests_waiting %d\n"+
			"vllm:num_preemptions_total 2\nprocess_start_time_seconds %d\n", s.now.usage, s.now.waiting, s.now.started)
	default:
		http.NotFound(w, r)
	}
}

// runStated runs a server in front of an engine that states what is expected. Minutes pass in these tests, and
// each health check of an engine that is not ready asks it three times.
func runStated(t *testing.T, change func(*Config), test func(t *testing.T, s *statingEngine, f *testServer)) {
	runServer(t, func(c *Config) {
		c.Model, c.Context, c.HealthInterval = "m", 4096, 200*time.Millisecond
		if change != nil {
			change(c)
		}
	}, func(t *testing.T, e *engine, f *testServer) {
		s := &statingEngine{now: expected}
		e.pass(s.answer)
		f.restart(e, nil)
		waitFor(t, func() bool { return f.EngineLoad().Capacity > 0 }) // its first metrics
		test(t, s, f)
	})
}

// TestMismatchedEngine restarts an engine with another model, and then with a shorter context. The
// replica is not ready and says why, once, although no health check failed in between; it is
// ready again when the engine is the right one.
func TestMismatchedEngine(t *testing.T) {
	log := new(testkit.Log)
	runStated(t, func(c *Config) { c.Logger = log.Logger() }, func(t *testing.T, s *statingEngine, f *testServer) {
		if got := f.Status(); !got.EngineReady || got.EngineProblem != "" || got.Engine.Version != "0.32.0" || got.Engine.Context("m") != 4096 {
			t.Errorf("the right engine: %+v, problem %q", got.Engine, got.EngineProblem)
		}
		for i, test := range []struct {
			engine stated
			want   string
		}{
			{stated{model: "other", context: 4096, started: 200}, `serves ["other"], not "m"`},
			{stated{model: "m", context: 4095, started: 300}, "sequences of 4095 tokens"},
		} {
			start := f.Engine().Start
			s.set(test.engine)
			f.waitForReady(false)
			waitFor(t, f.refusesConnections)
			time.Sleep(time.Minute)
			if got := f.Status(); got.EngineReady || !strings.Contains(got.EngineProblem, test.want) {
				t.Errorf("%s: ready %v, problem %q", test.want, got.EngineReady, got.EngineProblem)
			}
			if log.Count("does not match") != i+1 || log.Count("stopped answering") != 1 { // that one by runStated
				t.Errorf("%s: the log is %s", test.want, log)
			}
			s.set(expected)
			f.waitForReady(true)
			waitFor(t, func() bool { return f.EngineLoad().Capacity > 0 })
			if got := f.Status(); got.EngineProblem != "" || got.Engine.Start <= start {
				t.Errorf("the right engine again: problem %q, start %d after %d", got.EngineProblem, got.Engine.Start, start)
			}
		}
	})
}

// TestEngineLoadRate bounds how often an engine's metrics are read: once a second, and rarely
// while they fail.
func TestEngineLoadRate(t *testing.T) {
	runStated(t, nil, func(t *testing.T, s *statingEngine, f *testServer) {
		s.set(stated{model: "m", context: 4096, started: 100, usage: 0.5, waiting: 3})
		time.Sleep(time.Minute)
		if n := s.readCount(); n < 40 || n > 60 {
			t.Errorf("read %d times a minute", n)
		}
		want := policies.EngineLoad{Capacity: 1000, KVUsed: 500, Waiting: 3, Queued: 3, Preemptions: 2}
		if got := f.EngineLoad(); got != want || !got.Busy() || f.Status().Load.KV() != 500 {
			t.Errorf("load %+v, want %+v", got, want)
		}
		s.set(stated{model: "m", context: 4096, silent: true})
		time.Sleep(time.Minute)
		if n := s.readCount(); n > 7 {
			t.Errorf("metrics that fail were read %d times a minute", n)
		}
		if got := f.EngineLoad(); got != (policies.EngineLoad{}) {
			t.Errorf("a load of a minute ago counts: %+v", got)
		}
		if !f.Status().EngineReady {
			t.Error("an engine without metrics is not ready")
		}
	})
}

// TestEngineCapacity compares the engine's KV cache of 1,000 tokens with the configured one: the
// smaller of the two counts, and a difference is warned of once.
func TestEngineCapacity(t *testing.T) {
	for _, test := range []struct {
		kv     policies.Tokens
		stated bool
		want   policies.Tokens
		warned int
	}{{0, false, 1000, 0}, {5000, false, 1000, 0}, {5000, true, 1000, 1}, {400, true, 400, 1}, {1009, true, 1000, 0}} {
		t.Run(fmt.Sprint(test), func(t *testing.T) {
			log := new(testkit.Log)
			runStated(t, func(c *Config) { c.KVTokens, c.KVStated, c.Logger = test.kv, test.stated, log.Logger() }, func(t *testing.T, s *statingEngine, f *testServer) {
				s.set(stated{model: "m", context: 4096, started: 100, usage: 0.2})
				waitFor(t, func() bool { return f.EngineLoad().KVUsed == 200 })
				time.Sleep(time.Minute)
				if got := f.Status(); got.Load.Engine.Capacity != test.want || (got.CapacityWarning != "") != (test.warned > 0) {
					t.Errorf("capacity %d, want %d; warning %q", got.Load.Engine.Capacity, test.want, got.CapacityWarning)
				}
				f.admission.update(func(l *admission.Ledger) {
					if l.Decider.Capacity != test.want {
						t.Errorf("requests are admitted to a cache of %d tokens, want %d", l.Decider.Capacity, test.want)
					}
				})
				if n := log.Count("KV cache differs"); n != test.warned {
					t.Errorf("warned %d times, want %d: %s", n, test.warned, log)
				}
				want := fmt.Sprintf("kv_cache_usage_perc=%.4f", 200/float64(test.want))
				waitFor(t, func() bool { return strings.Contains(*f.loadHeader.Load(), want) })
			})
		})
	}
}

// TestSharedPrefixes checks the KV in use when the engine reports less, or more, than the lengths
// that are counted here.
func TestSharedPrefixes(t *testing.T) {
	now := time.Now()
	sample := func(used policies.Tokens, asked policies.Load) counterSample {
		return counterSample{counted: asked, metrics: engineinfo.Metrics{KVTokens: 8192, Load: policies.EngineLoad{Capacity: 8192, KVUsed: used}}}
	}
	none, one := policies.Load{}, policies.Load{Held: 720}
	for _, test := range []struct {
		name         string
		at           policies.Load // counted here when the engine reports used
		used         policies.Tokens
		then         policies.Load
		want, wantKV policies.Tokens // with what waits, and without
	}{
		{"nothing shared", policies.Load{Held: 3000}, 3000, policies.Load{Held: 3500}, 3500, 3500},
		{"a shared prefix counts once", policies.Load{Held: 22549}, 4000, policies.Load{Held: 22600}, 4051, 4051},
		{"what waits is not counted twice", policies.Load{Held: 1000, Promised: 500}, 1400, policies.Load{Held: 1000, Promised: 500}, 1500, 1000},
		{"requests of others", policies.Load{Held: 100}, 900, policies.Load{Held: 150}, 950, 950},
		{"requests that shared have ended", policies.Load{Held: 9000}, 1000, policies.Load{Held: 500}, 0, 0},
		{"more than there is", policies.Load{Held: 100}, 8192, policies.Load{Held: 9000}, 8192, 8192},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newEngineFacts(Config{})
			s.handleMetrics(sample(test.used, test.at), test.at, now)
			l := s.addLoad(test.then, now.Add(time.Second))
			if l.KV() != test.wantKV || l.KV()+l.Promised != test.want {
				t.Errorf("%d in use, with what waits %d; want %d, %d", l.KV(), l.KV()+l.Promised, test.wantKV, test.want)
			}
			testkit.NoError(t, l.Validate())
		})
	}
	for _, change := range [][2]policies.Load{{one, none}, {none, one}} {
		for _, used := range []policies.Tokens{0, 720} { // before and after the change
			s := newEngineFacts(Config{})
			s.handleMetrics(sample(used, change[0]), change[1], now)
			if got := s.addLoad(change[1], now).KV(); got != change[1].Held {
				t.Errorf("%d while asked, then %d; the engine reports %d: %d in use", change[0].Held, change[1].Held, used, got)
			}
		}
	}
}

// TestQueue checks that requests which wait at one report only are no queue: they have just arrived.
func TestQueue(t *testing.T) {
	s, now := newEngineFacts(Config{}), time.Now()
	for i, test := range []struct {
		queued int
		busy   bool
	}{{1, false}, {0, false}, {2, false}, {1, true}, {3, true}, {0, false}} {
		s.handleMetrics(counterSample{metrics: engineinfo.Metrics{Load: policies.EngineLoad{Waiting: 4, Queued: test.queued}}}, policies.Load{}, now)
		if got := s.addLoad(policies.Load{}, now).Engine; got.Busy() != test.busy || got.Waiting != 4 {
			t.Errorf("report %d: %+v, want busy %v", i, got, test.busy)
		}
	}
}

// TestLoadBetweenReports checks that the load of an engine whose metrics are read as rarely as may be
// is known at all times.
func TestLoadBetweenReports(t *testing.T) {
	s, now := newEngineFacts(Config{}), time.Now()
	used := func(after time.Duration) policies.Tokens {
		return s.addLoad(policies.Load{Held: 5000}, now.Add(after)).KV()
	}
	s.handleMetrics(counterSample{
		took: time.Minute, counted: policies.Load{Held: 5000},
		metrics: engineinfo.Metrics{KVTokens: 1000, Load: policies.EngineLoad{Capacity: 1000, KVUsed: 400}},
	}, policies.Load{Held: 5000}, now)
	for after := time.Duration(0); !s.due(now.Add(after)); after += time.Second {
		if got := used(after); got != 400 {
			t.Fatalf("after %v %d tokens are in use, want 400", after, got)
		}
	}
	if got := used(2 * engineLoadAge); got != 5000 {
		t.Errorf("a report of long ago counts: %d", got)
	}
}

// TestUnansweredQuestions checks that what an engine does not answer when it is asked again stays known.
func TestUnansweredQuestions(t *testing.T) {
	s := newEngineFacts(Config{Model: "m"})
	info := engineinfo.Info{Version: "1", Models: []engineinfo.Model{{Name: "other"}}, KVTokens: 1000, BlockTokens: 10, Connector: engineinfo.Present}
	for i, answer := range []engineinfo.Info{info, {}} {
		mismatch, isNew := s.learn(answer, false)
		if mismatch == nil || isNew != (i == 0) || fmt.Sprint(s.info) != fmt.Sprint(info) {
			t.Errorf("answer %d: %+v is known; %v, new %v", i, s.info, mismatch, isNew)
		}
	}
}

// TestRestartForgetsConnectors restarts an engine that had no connector, between two health checks.
func TestRestartForgetsConnectors(t *testing.T) {
	runStated(t, nil, func(t *testing.T, s *statingEngine, f *testServer) {
		f.backoffs.learn(f.cfg.Replica, "other", handoff.KeepKV, engineinfo.ErrNoConnector, time.Now())
		now := expected
		now.started = 200
		s.set(now)
		defer within(t, connectorRetry/2)()
		waitFor(t, func() bool { return f.backoffs.mayHandOff(f.cfg.Replica, "other", time.Now()) })
	})
}

// TestEngineLimitSurvivesMoves checks that an answer does not get longer because
// it moved, when the engine bounds answers by a setting of its own.
func TestEngineLimitSurvivesMoves(t *testing.T) {
	const most = 60
	for i, kind := range [][2]string{
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true,"stream_options":{"include_usage":true}}`},
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":90,"stream":true}`},
		{"/v1/completions", `{"model":"m","prompt":"x","max_tokens":90,"stream":true}`},
		// From here on the limit is for chats without max_tokens only.
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true}`},
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":90,"stream":true}`},
	} {
		for way, move := range map[string]func(f *fleet, stream string) error{
			"live": func(f *fleet, stream string) error {
				_, err := f.migrateLive(f.t.Context(), stream, 1, nil)
				return err
			},
			"reprompt": func(f *fleet, stream string) error { _, err := f.migrateReprompt(f.t.Context(), stream, 1); return err },
			"rescue":   func(f *fleet, _ string) error { f.engines[0].killAll(); return nil },
		} {
			runFleet(t, 2, func(t *testing.T, f *fleet) {
				f.rescuer.setTargets(f.target(1))
				for n, e := range f.engines {
					e.limitsDefault.Store(i > 2)
					f.servers[n].restart(e, func() { e.maxNewTokens.Store(most) })
				}
				s := f.startKind(kind, 5)
				waitFor(t, func() bool { return move(f, s.id) == nil })
				if got := <-s.got; withoutCached(got) != withoutCached(s.want) {
					t.Errorf("%s, %s: moved\n got %s\nwant %s", way, kind, got, s.want)
				}
				f.requireIdle()
			}, rescues)
		}
	}
}

// TestEngineLimitOfPeer checks that the front end learns the limit of the peer's
// engine that runs the first leg, which may be another one than its own.
func TestEngineLimitOfPeer(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		f.placers[0].sendTo(f.target(1))
		b := f.engines[1]
		f.servers[1].restart(b, func() { b.maxNewTokens.Store(40) })
		hold := b.blockAt(4)
		f.start(`{"model":"m","prompt":"x","max_tokens":90,"stream":true}`)
		s := f.waitForStream(4)
		if n := s.cfg.Resume.Remaining(4); n != 36 {
			t.Errorf("after 4 tokens %d may follow elsewhere, want the 36 that the peer's engine would generate", n)
		}
		close(hold)
	}, places)
}

// TestEngineWithoutLimit checks what is known of engines that state no limit, or
// only that of their context.
func TestEngineWithoutLimit(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, srv *testServer) {
		if l := srv.limits(); l != (engineLimits{byDefault: 131071}) {
			t.Errorf("limits %+v of an engine that is limited by its context", l)
		}
		if n := srv.limits().of(openai.Completions, 0); n != 0 {
			t.Errorf("limit %d of completions", n)
		}
		for name, answer := range map[string]func(http.ResponseWriter){
			"another refusal":   func(w http.ResponseWriter) { w.WriteHeader(400); fmt.Fprint(w, `{"error":"no"}`) },
			"not authenticated": func(w http.ResponseWriter) { w.WriteHeader(401) },
			"an answer":         func(w http.ResponseWriter) { fmt.Fprint(w, "data: max_tokens=7, got\n\n") },
		} {
			e.probeAnswer.Store(&answer)
			srv.askLimits(t.Context())
			if l := srv.limits(); l != (engineLimits{}) {
				t.Errorf("%s: limits %+v", name, l)
			}
		}
	})
}

// TestUsageAfterMove checks that the usage of a moved stream says nothing of the
// prompt that only its last leg knows.
func TestUsageAfterMove(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		f.rescuer.setTargets(f.target(1))
		f.engines[1].moreUsage = `,"created_cache_tokens":4`
		s := f.startStream(longRequest)
		f.engines[0].killAll()
		if got := <-s.got; !strings.Contains(got, `"cached_tokens":null,"created_cache_tokens":null}`) {
			t.Errorf("the usage is the last leg's: %s", got[len(got)-300:])
		}
		f.requireIdle()
	}, rescues)
}

// TestEchoKeepsPromptIDs checks that a stream with echo has the prompt's token
// ids, which vLLM sends with every echo.
func TestEchoKeepsPromptIDs(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, srv *testServer) {
		const events = `data: {"id":"c","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"ab","logprobs":null,"finish_reason":"length","stop_reason":null,"prompt_token_ids":[1,2],"token_ids":null}],"system_fingerprint":"v"}` + "\n\ndata: [DONE]\n\n"
		e.sendEvents(events, false)
		if _, got := srv.post("/v1/completions", `{"model":"m","prompt":"a","echo":true,"stream":true,"stream_options":{"include_usage":true}}`); got != events {
			t.Errorf("got %s\nwant %s", got, events)
		}
	})
}
