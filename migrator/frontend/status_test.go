package frontend

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
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
					req, _ := http.NewRequest("POST", "http://"+f.url+path, strings.NewReader(fmt.Sprintf(`{"prompt":"0123456789abcdef","messages":[],"max_tokens":%d%s}`, n, more)))
					req.Header.Set("x-cascade-tokens", "25")
					resp := testkit.Must(f.client.Do(req))
					b, err := io.ReadAll(resp.Body)
					if resp.Body.Close(); err != nil || resp.StatusCode != 200 {
						t.Fatalf("%v: %s %s", err, resp.Status, b)
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
		var arrivals, generated, prefill float64
		for b := range s.Flow.Edges {
			arrivals, generated, prefill = arrivals+s.Flow.Arrivals[b], generated+s.Flow.Tokens[b], prefill+s.Flow.Prefill[b]
		}
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

// TestTokenAllocations bounds what a token costs between a leg and its client.
func TestTokenAllocations(t *testing.T) {
	ev := testkit.Must(openai.NewReader(strings.NewReader(generation("a", prompt, len(prompt), 100)[50])).Next())
	var c openai.Chunk
	testkit.NoError(t, c.Parse(ev))
	out := &eventWriter{w: nowhere{}, control: http.NewResponseController(nowhere{}), hideIDs: true, hideUsage: true}
	s := new(Server).newStream(t.Context(), session.Config{Asked: openai.Edit{HideIDs: true, HideUsage: true}}, out, func() {})
	leg := &sameLeg{&c}
	next := opened(leg, &c)
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

// sameLeg is a Leg that brings the same chunk over and over.
type sameLeg struct{ c *openai.Chunk }

func (l *sameLeg) Next() (*openai.Chunk, error) { return l.c, nil }
func (l *sameLeg) Close() error                 { return nil }

// nowhere is a ResponseWriter that discards everything.
type nowhere struct{}

func (nowhere) Header() http.Header         { return nil }
func (nowhere) WriteHeader(int)             {}
func (nowhere) Write(b []byte) (int, error) { return len(b), nil }
func (nowhere) FlushError() error           { return nil }

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

		"HealthTimeout": func(c *Config) { c.HealthTimeout = -1 },
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

// TestPrefixesAreObserved checks that prompts count for the depth of prefix keys, with a key and
// without: before a depth is learnt, none has one.
func TestPrefixesAreObserved(t *testing.T) {
	f := testkit.Must(New(Config{Replica: "r", Engine: "http://127.0.0.1:1", Edges: []policies.Tokens{0}}))
	body := []byte(`{"prompt":"` + strings.Repeat("x", 300) + `"}`)
	for i, c := range []struct {
		header http.Header
		body   []byte
		want   int
	}{
		{http.Header{}, body, 1},
		{http.Header{}, []byte(`{"prompt":"short"}`), 1},
		{http.Header{"X-Cascade-Prefix": {"0"}}, []byte(strings.Replace(string(body), "xx", "xy", 1)), 2},
		{http.Header{"X-Cascade-Prefix": {"0"}}, body, 2}, // again
	} {
		f.estimateArrival(c.header, &openai.Request{Choices: 1}, c.body)
		depths := f.Status().PrefixDepths
		if got := depths.Prompts(); got != c.want {
			t.Errorf("request %d: %d prompts were observed, want %d", i, got, c.want)
		}
	}
}
