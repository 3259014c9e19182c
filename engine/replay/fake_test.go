package replay

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// served is a request as the fake decodes it.
type served struct {
	Model     string          `json:"model"`
	Prompt    json.RawMessage `json:"prompt"`
	MaxTokens int             `json:"max_tokens"`
	IgnoreEOS bool            `json:"ignore_eos"`
	Stream    bool            `json:"stream"`
	header    http.Header
	host      string
}

// fake is an OpenAI server that streams tokens at fixed times.
type fake struct {
	prefill time.Duration // before the first token
	step    time.Duration // between tokens
	// override answers in place of the fake if it is set and returns true.
	override func(w http.ResponseWriter) bool

	mu       sync.Mutex
	requests []served
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body served
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || r.URL.Path != "/v1/completions" {
		http.Error(w, fmt.Sprintf("%v at %s", err, r.URL.Path), http.StatusBadRequest)
		return
	}
	body.header, body.host = r.Header, r.Host
	f.mu.Lock()
	f.requests = append(f.requests, body)
	f.mu.Unlock()
	if f.override != nil && f.override(w) {
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("X-Cascade-Stage", fmt.Sprintf("s%d", min(len(body.Prompt)/2000, 1)))
	time.Sleep(f.prefill)
	for i := range body.MaxTokens {
		if i > 0 {
			time.Sleep(f.step)
		}
		token(w, " the")
	}
	finish(w, 7, body.MaxTokens)
}

// token writes one chunk and flushes it.
func token(w http.ResponseWriter, text string) {
	fmt.Fprintf(w, `data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":%q,"finish_reason":null}],"usage":null}`+"\n\n", text)
	_ = http.NewResponseController(w).Flush()
}

// finish writes the usage and the end of a stream.
func finish(w http.ResponseWriter, prompt, completion int) {
	fmt.Fprintf(w, `data: {"id":"cmpl-1","choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":2}}}`+"\n\ndata: [DONE]\n\n", prompt, completion)
}

// run replays requests against the fake inside a synctest bubble.
func run(t *testing.T, f *fake, cfg Config) (Result, error) {
	t.Helper()
	return runContext(t, t.Context(), f, cfg)
}

func runContext(t *testing.T, ctx context.Context, f *fake, cfg Config) (Result, error) {
	t.Helper()
	listener := testkit.NewPipeListener(netip.MustParseAddrPort("127.0.0.1:1"))
	server := &http.Server{Handler: f}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_ = server.Serve(listener)
	}()
	defer func() {
		_ = server.Close()
		<-stopped
		// On synthetic time, an hour is long enough for every handler to end.
		time.Sleep(time.Hour)
	}()
	cfg.Target, cfg.Model = "http://fake", "m"
	transport := transport(cfg.withDefaults())
	transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return listener.Dial(ctx) }
	cfg.Transport = transport
	if cfg.CPU == nil {
		cfg.CPU = func() (CPUTimes, error) { return CPUTimes{}, errNoCPU }
	}
	replay, err := New(cfg)
	testkit.NoError(t, err)
	return replay.Run(ctx)
}

// every returns n equal requests, one per gap.
func every(gap time.Duration, n int, input, output policies.Tokens) []trace.Request {
	requests := make([]trace.Request, n)
	for i := range requests {
		requests[i] = trace.Request{At: time.Duration(i) * gap, Input: input, Output: output}
	}
	return requests
}
