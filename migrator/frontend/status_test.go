package frontend

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/migrator/internal/session"
	"github.com/cascadeinfer/cascade/policies"
)

// TestCounts compares what a server reports with what it served: streamed,
// assembled and relayed answers count alike.
func TestCounts(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		requests, tokens := 0, 0
		for _, more := range []string{"", "", `,"stream":true`, `,"logprobs":1`, `,"stream":true,"return_token_ids":true`} {
			for _, path := range []string{"/v1/completions", "/v1/chat/completions"} {
				for n := 1; n < 40; n += 13 {
					body := fmt.Sprintf(`{"prompt":"0123456789abcdef","messages":[],"max_tokens":%d%s}`, n, more)
					if resp, text := f.post(path, body, "x-cascade-tokens", "25"); resp.StatusCode != 200 {
						t.Fatalf("%s %s", resp.Status, text)
					}
					requests, tokens = requests+1, tokens+n
				}
			}
		}
		// A handler may return after its client has read everything.
		waitFor(t, func() bool { return f.Status().Flow.Seen == uint64(requests) })
		s := f.Status()
		if s.Load != (policies.Load{}) || !s.EngineReady || s.Draining {
			t.Errorf("at rest: %+v", s)
		}
		// Rates have the same denominator, so that their ratios are exact.
		arrivals, generated, prefill := sum(s.Flow.Arrivals), sum(s.Flow.Tokens), sum(s.Flow.Prefill)
		// The prompt has 20 tokens, 16 of them cached if the engine reports that.
		if got, want := generated/arrivals, float64(tokens)/float64(requests); math.Abs(got/want-1) > 0.02 {
			t.Errorf("%.3f tokens a request are counted, %.3f were served", got, want)
		}
		if got := prefill / arrivals; math.Abs(got-4) > 0.1 {
			t.Errorf("%.3f uncached prompt tokens a request are counted, 4 were", got)
		}
		if math.Abs(s.EstimateError-0.25) > 1e-6 {
			t.Errorf("estimates of 25 for 20 tokens have the error %g", s.EstimateError)
		}
		if s.BytesPerToken <= 0 {
			t.Error("no bytes per token were learnt")
		}
	})
}

func sum(cells []float64) (s float64) {
	for _, x := range cells {
		s += x
	}
	return s
}

// TestTokenAllocations bounds what a token costs between an engine and its client.
func TestTokenAllocations(t *testing.T) {
	_, c := newCall(t.Context())
	leg := readLeg(io.NopCloser(endless(tokenEvent("null"))), c, nil, time.Hour)
	defer leg.close()
	asked := openai.Edit{HideIDs: true, HideUsage: true}
	s := new(Server).newStream(t.Context(), session.Config{Asked: asked}, newEventWriter(nowhere{}, asked), func() {})
	next := opened(leg, testkit.Must(leg.next()))
	ids := 0
	if n := testing.AllocsPerRun(1000, func() {
		if over, err := s.pumpEvent(&next); over || err != nil {
			t.Fatal(over, err)
		}
		ids++
	}); n > 0.1 { // the pool's buffer may be taken by a collection; the ids grow now and then
		t.Errorf("a token costs %g allocations, want none", n)
	}
	if got, _ := s.machine.IDs(); len(got) != ids {
		t.Errorf("the stream has %d ids after %d tokens", len(got), ids)
	}
}

// endless reads one event over and over.
type endless string

func (e endless) Read(b []byte) (int, error) { return copy(b, e), nil }

// nowhere is a ResponseWriter that discards everything.
type nowhere struct{}

func (nowhere) Header() http.Header { return nil }

func (nowhere) WriteHeader(int) {}

func (nowhere) Write(b []byte) (int, error) { return len(b), nil }

func (nowhere) FlushError() error { return nil }

func TestConfig(t *testing.T) {
	good := Config{Replica: "r", Engine: "http://127.0.0.1:1", Edges: []policies.Tokens{0, 16}}
	testkit.Must(New(good))
	for field, change := range map[string]func(*Config){
		"Replica":        func(c *Config) { c.Replica = "" },
		"Engine":         func(c *Config) { c.Engine = "127.0.0.1:8000" },
		"Edges":          func(c *Config) { c.Edges = []policies.Tokens{1} },
		"PeerScheme":     func(c *Config) { c.PeerScheme = "ftp" },
		"MaxBody":        func(c *Config) { c.MaxBody = -1 },
		"FlowTau":        func(c *Config) { c.FlowTau = -1 },
		"FetchPrefill":   func(c *Config) { c.FetchPrefill = func() bool { return true } },
		"BodyTimeout":    func(c *Config) { c.BodyTimeout = -1 },
		"IdleTimeout":    func(c *Config) { c.IdleTimeout = -1 },
		"WriteTimeout":   func(c *Config) { c.WriteTimeout = -1 },
		"DrainTimeout":   func(c *Config) { c.DrainTimeout = -1 },
		"HealthInterval": func(c *Config) { c.HealthInterval = -1 },
		"HealthTimeout":  func(c *Config) { c.HealthTimeout = -1 },
	} {
		c := good
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("a bad %s: %v", field, err)
		}
	}
}

// TestForgedEstimate checks that a client's own estimate counts as far as its
// body can hold that many tokens, and that an invalid one counts like none: the
// request was routed by its size.
func TestForgedEstimate(t *testing.T) {
	f := testkit.Must(New(Config{Replica: "r", Engine: "http://127.0.0.1:1", Edges: []policies.Tokens{0}}))
	body := []byte(`{"prompt":"some text"}`)
	bySize := f.tracker.Estimator().FromContentLength(int64(len(body)))
	for stated, want := range map[string]policies.Tokens{
		"9223372036854775807": policies.Tokens(2 * len(body)), "9223372036854775808": bySize, "-1": bySize, "": bySize, "7": 7,
	} {
		a := f.estimateArrival(http.Header{"X-Cascade-Tokens": {stated}}, &openai.Request{Choices: 1}, body)
		if a.RoutedEstimate != want || a.Estimate > policies.Tokens(2*len(body)) {
			t.Errorf("stated %s: %+v, want %d", stated, a, want)
		}
	}
}

// TestRepeatedPrompts checks which prompts are taken for equal ones, whatever else the requests say.
func TestRepeatedPrompts(t *testing.T) {
	f := testkit.Must(New(Config{Replica: "r", Engine: "http://127.0.0.1:1", Edges: []policies.Tokens{0}}))
	text := strings.Repeat("x", 300)
	for i, c := range []struct {
		endpoint openai.Endpoint
		body     string
		repeated bool
	}{
		{openai.Completions, `{"prompt":"` + text + `"}`, false},
		{openai.Completions, `{"model":"m","n":2,"prompt":"` + text + `"}`, true},
		{openai.Completions, `{"prompt":"` + text + `x"}`, false},
		{openai.Completions, `{"prompt":[1,2]}`, false},
		{openai.Completions, `{"prompt":[1,3]}`, false},
		{openai.Chat, `{"messages":[{"role":"user","content":"` + text + `"}]}`, false},
		{openai.Chat, `{"messages":[{"role":"user","content":"` + text + `"}],"temperature":1}`, true},
		{openai.Chat, `{"messages":[{"role":"user","content":"` + text + `y"}]}`, false},
		{openai.Completions, `{"max_tokens":1}`, false},
		{openai.Completions, `{"max_tokens":1}`, false},
	} {
		req := testkit.Must(f.dialect().Capabilities().Fields.Parse(c.endpoint, []byte(c.body)))
		if a := f.estimateArrival(http.Header{}, &req, []byte(c.body)); a.Repeated != c.repeated {
			t.Errorf("request %d: repeated is %v: %.60s", i, a.Repeated, c.body)
		}
	}
}

// TestServiceCounts checks what a front end reports of how its clients were served: times of answers, and requests
// that failed, whether with a status or in the middle of an answer.
func TestServiceCounts(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, srv *testServer) {
		askAt := func(path, body string) (status int) {
			resp, _, err := tryDo(srv.client, jsonRequest(srv.url, path, body))
			if resp == nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return resp.StatusCode
		}
		ask := func() int {
			return askAt("/v1/completions", `{"model":"m","prompt":"x","max_tokens":7,"stream":true}`)
		}
		e.set(func(int, *http.Request) { time.Sleep(20 * time.Millisecond) }, nil)
		ask()
		s := srv.Status().Service
		if s.FirstToken.Total() != 1 || s.PerToken.Total() != 1 || s.Failed != 0 || s.PerToken.Quantile(1) < 0.016 || s.PerToken.Quantile(1) > 0.028 {
			t.Errorf("after an answer: %+v", s)
		}
		health := testkit.Must(srv.client.Get("http://" + srv.url + "/health"))
		health.Body.Close()
		if n := srv.Status().Received; n != 1 {
			t.Errorf("after a request and a health check: %d requests received, want 1", n)
		}
		for i, override := range []http.HandlerFunc{
			func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "broken", http.StatusInternalServerError) },
			breaks,
			func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"text\":\"a\",\"token_ids\":[1]}]}\n\n")
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			},
		} {
			e.set(nil, override)
			status := ask()
			if got := srv.Status().Service.Failed; got != uint64(i+1) {
				t.Errorf("case %d, answered with %d: %d failed, want %d", i, status, got, i+1)
			}
		}
		e.set(nil, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "your fault", http.StatusBadRequest) })
		if status := ask(); status != http.StatusBadRequest || srv.Status().Service.Failed != 3 {
			t.Errorf("a bad request, answered with %d, counts: %d", status, srv.Status().Service.Failed)
		}
		for i, answer := range []http.HandlerFunc{
			func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "broken", http.StatusInternalServerError) },
			breaks,
		} {
			e.pass(answer)
			status := askAt("/v1/embeddings", `{"input":"x"}`)
			if got := srv.Status().Service.Failed; got != uint64(i+4) {
				t.Errorf("embeddings, case %d, answered with %d: %d failed, want %d", i, status, got, i+4)
			}
		}
		srv.overloadEngine()
		if status := askAt("/v1/embeddings", `{"input":"once upon a time there was a replica"}`); status != http.StatusTooManyRequests || srv.Status().TurnedAway != 1 || srv.Status().Service.Failed != 5 {
			t.Errorf("embeddings, answered with %d: %d turned away, %d failed", status, srv.Status().TurnedAway, srv.Status().Service.Failed)
		}
	})
}

// TestCachedTokensEstimated sends twelve prompts that begin alike. The prefill of an engine that reports
// no cached tokens is counted about once, and the server says that it is an estimate; that of one that
// reports them is as it reports.
func TestCachedTokensEstimated(t *testing.T) {
	for _, hides := range []bool{true, false} {
		runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
			e.hidesCached.Store(hides)
			const prompts, shared = 12, 4096
			for i := range prompts {
				body := fmt.Sprintf(`{"max_tokens":1,"stream":true,"prompt":[%s%d]}`, strings.Repeat("7,", shared), i+1)
				if _, got := f.post("/v1/completions", body); !strings.HasSuffix(got, "[DONE]\n\n") {
					t.Fatal(got)
				}
			}
			s := f.Status()
			perPrompt, want := sum(s.Flow.Prefill)/sum(s.Flow.Arrivals), 1.0 // one token beyond the blocks of 16
			if hides {
				want = (shared + prompts) / prompts
			}
			if perPrompt < want*0.9 || perPrompt > want*1.1 || s.CachedEstimated != hides {
				t.Errorf("cached tokens hidden: %v: %.1f tokens of prefill per prompt, want %.1f; estimated: %v", hides, perPrompt, want, s.CachedEstimated)
			}
		})
	}
}

// TestUsageOfPassedAnswer checks that the usage of an answer that is passed through, such as that of embeddings, says
// nothing of what the engine reports of prompts.
func TestUsageOfPassedAnswer(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		e.pass(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"usage":{"prompt_tokens":9}}`) })
		f.post("/v1/embeddings", `{"input":"x"}`)
		if got := f.Engine().PromptDetails; got != engineinfo.Unknown {
			t.Errorf("details of prompts: %v", got)
		}
	})
}

// TestCachedTokensOfNewEngine restarts the engine: what the one before had cached is
// forgotten, and whether it reported cached tokens says nothing about the new one.
func TestCachedTokensOfNewEngine(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		ids := make([]uint32, 256)
		send := func(hides bool) {
			e.hidesCached.Store(hides)
			body := fmt.Sprintf(`{"model":"m","max_tokens":1,"stream":true,"prompt":[%s0]}`, strings.Repeat("0,", len(ids)-1))
			if _, got := f.post("/v1/completions", body); !strings.HasSuffix(got, "[DONE]\n\n") {
				t.Fatal(got)
			}
		}
		send(true)
		send(true)
		if known := f.prefixes.Match(f.promptRoot("m", ""), ids); known == 0 || !f.Status().CachedEstimated {
			t.Fatalf("%d tokens of a prompt are known that was sent twice", known)
		}
		f.restart(e, nil)
		if known := f.prefixes.Match(f.promptRoot("m", ""), ids); known != 0 || f.Status().CachedEstimated {
			t.Errorf("a new engine has %d tokens cached", known)
		}
		send(false)
		send(false)
		if !f.engineFacts.reportsCached() {
			t.Fatal("an engine that reports cached tokens is not known to")
		}
		if f.engineFacts.beginAsking(true); !f.engineFacts.reportsCached() { // as after a hang, which empties no cache
			t.Error("an engine that is asked anew is not known to report cached tokens")
		}
		f.restart(e, nil)
		send(true)
		if send(true); !f.Status().CachedEstimated {
			t.Error("a new engine that reports nothing is taken for the one before, which did")
		}
	})
}

// TestLoadHeader checks that answers report the share of the KV cache that the
// server counts, and nothing that an engine reports about itself.
func TestLoadHeader(t *testing.T) {
	runServer(t, func(c *Config) { c.KVTokens = 100 }, func(t *testing.T, e *engine, f *testServer) {
		f.updateLoadHeader() // before the timer does
		ask := func(path string) string {
			t.Helper()
			resp, _ := f.post(path, `{"prompt":"x","messages":[],"max_tokens":3}`)
			if n := len(resp.Header[loadHeader]); n != 1 {
				t.Errorf("%s: %d fields", path, n)
			}
			return resp.Header.Get(loadHeader)
		}
		const idle = "TEXT named_metrics.kv_cache_usage_perc=0.0000,named_metrics.num_requests_running=0,named_metrics.num_requests_waiting=0"
		e.set(nil, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(loadHeader, "TEXT named_metrics.kv_cache_usage_perc=9")
			fmt.Fprint(w, "{}")
		})
		for _, path := range []string{"/v1/completions", "/v1/embeddings"} {
			if got := ask(path); got != idle {
				t.Errorf("%s: %q", path, got)
			}
		}
		// A request in progress is counted, and so is its client.
		held := e.blockAt(1)
		resp := testkit.Must(f.client.Post("http://"+f.url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"0123456789abcdef","max_tokens":9,"stream":true}`)))
		defer resp.Body.Close()
		waitFor(t, func() bool {
			f.updateLoadHeader()
			text := f.loadHeader.Load()
			return strings.Contains(*text, "num_requests_running=1") && !strings.Contains(*text, "perc=0.0000") && f.ClientRequests() == 1
		})
		close(held)
		resp.Body.Close()
		waitFor(t, func() bool { return f.ClientRequests() == 0 })
	})
}
