package emulator

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/engine/internal/kvport"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// vocabulary is shared by the tests: loading it takes longer than most.
var vocabulary = sync.OnceValues(model.NewVocabulary)

// plainProfile returns a profile whose times are easy to add up.
func plainProfile() cost.Profile {
	return cost.Profile{
		Name: "plain", Unit: "seconds", Ranks: 1, D0: 10e-3, D1: 1e-3, D2: 0.1e-3,
		KVBytesPerToken: 131072, KVTokens: 4096, MaxBatch: 8,
	}
}

func newEngine(t testing.TB, c Config) *Engine {
	t.Helper()
	v, err := vocabulary()
	testkit.NoError(t, err)
	c.Vocabulary = v
	if c.Model == "" {
		c.Model = "m"
	}
	if c.Profile.Name == "" {
		c.Profile = plainProfile()
	}
	e, err := New(c)
	testkit.NoError(t, err)
	return e
}

// start runs a replica until the end of the test; stop ends it earlier.
func start(t testing.TB, c Config) (e *Engine, stop func()) {
	t.Helper()
	e = newEngine(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return e, stop
}

func post(path, body string) *http.Request {
	r := httptest.NewRequest("POST", path, strings.NewReader(body))
	r.Header.Set("X-Request-Id", "r")
	return r
}

func serveRequest(e *Engine, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	e.Handler().ServeHTTP(w, r)
	return w
}

// completion holds the fields of an answer that the tests read.
type completion struct {
	Choices []struct {
		Text         string
		FinishReason string        `json:"finish_reason"`
		StopReason   any           `json:"stop_reason"`
		TokenIDs     []model.Token `json:"token_ids"`
	}
	Usage struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		Details          struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
}

func complete(t *testing.T, e *Engine, body string) completion {
	t.Helper()
	return decodeCompletion(t, serveRequest(e, post("/v1/completions", body)))
}

// decodeCompletion returns the completion that a request was answered with.
func decodeCompletion(t *testing.T, w *httptest.ResponseRecorder) completion {
	t.Helper()
	var c completion
	if err := json.Unmarshal(w.Body.Bytes(), &c); err != nil || w.Code != http.StatusOK || len(c.Choices) != 1 {
		t.Fatalf("status %d, %v: %s", w.Code, err, w.Body)
	}
	return c
}

// A stream sends its tokens one by one as they are generated, and its text equals that of the
// answer without streaming.
func TestStreamIsTheSameText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, stop := start(t, Config{})
		defer stop()
		whole := complete(t, e, `{"prompt":"speak up","max_tokens":400,"ignore_eos":true}`)
		w := serveRequest(e, post("/v1/completions", `{"prompt":"speak up","max_tokens":400,"ignore_eos":true,"stream":true,"return_token_ids":true}`))
		var text strings.Builder
		empty, chunks := 0, events(t, w.Body.String())
		for _, c := range chunks {
			if n := len(c.Choices[0].TokenIDs); n != 1 {
				t.Fatalf("a chunk of %d tokens for a client that keeps up", n)
			}
			if c.Choices[0].Text == "" {
				empty++
			}
			text.WriteString(c.Choices[0].Text)
		}
		if len(chunks) != 400 || text.String() != whole.Choices[0].Text {
			t.Errorf("%d chunks, text %.60q, want 400, %.60q", len(chunks), text.String(), whole.Choices[0].Text)
		}
		if empty == 0 {
			t.Error("no token was a part of a character: the text proves too little")
		}
		if !strings.HasSuffix(w.Body.String(), "data: [DONE]\n\n") {
			t.Error("the stream has no end marker")
		}
	})
}

// Any replica of the same name continues the same ids identically, also from the middle, and under
// a load that causes preemption.
func TestReplicasContinueEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, stopA := start(t, Config{})
		defer stopA()
		b, stopB := start(t, Config{KVTokens: 320, Context: 300, BlockTokens: 4, MaxBatchedTokens: 16, Speed: 3})
		defer stopB()
		other, stopOther := start(t, Config{Model: "n"})
		defer stopOther()
		const ask = `{"prompt":%s,"max_tokens":%d,"ignore_eos":true,"return_token_ids":true}`
		want := complete(t, a, fmt.Sprintf(ask, "[1,2,3]", 200)).Choices[0].TokenIDs
		var done sync.WaitGroup
		for i := range 6 {
			done.Go(func() {
				serveRequest(b, post("/v1/completions", fmt.Sprintf(ask, fmt.Sprintf("[%d,7,8]", i), 150)))
			})
		}
		for _, cut := range []int{0, 1, 50, 119} {
			ids, err := json.Marshal(append([]model.Token{1, 2, 3}, want[:cut]...))
			testkit.NoError(t, err)
			got := complete(t, b, fmt.Sprintf(ask, ids, 200-cut)).Choices[0].TokenIDs
			if fmt.Sprint(got) != fmt.Sprint(want[cut:]) {
				t.Errorf("cut at %d: %v, want %v", cut, got, want[cut:])
			}
		}
		done.Wait()
		if !strings.Contains(metricsOf(b), "num_preemptions_total") || metric(t, b, "vllm:num_preemptions_total") == 0 {
			t.Error("nothing was preempted: the load is too light")
		}
		if got := complete(t, other, fmt.Sprintf(ask, "[1,2,3]", 200)).Choices[0].TokenIDs; fmt.Sprint(got) == fmt.Sprint(want) {
			t.Error("another model gives the same text")
		}
	})
}

func metricsOf(e *Engine) string {
	return serveRequest(e, httptest.NewRequest("GET", "/metrics", nil)).Body.String()
}

// metric reads the first sample of a name, or the one with exactly the labels in the name.
func metric(t *testing.T, e *Engine, name string) float64 {
	t.Helper()
	for line := range strings.Lines(metricsOf(e)) {
		if strings.HasPrefix(line, name+"{") || strings.HasPrefix(line, name+" ") {
			var v float64
			if _, err := fmt.Sscan(line[strings.Index(line, "} ")+2:], &v); err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// Each sample is read from its own field of the Stats.
func TestMetricsOfStats(t *testing.T) {
	e, err := New(Config{Model: "m", Profile: plainProfile(), KVTokens: 640, NoPrefixCache: true})
	testkit.NoError(t, err)
	e.stats = batch.Stats{Running: 1, Waiting: 2, Frozen: 3, UsedBlocks: 4, Reserved: 5, Preemptions: 6, PromptTokens: 7, GenerationTokens: 8, PrefixQueries: 9, PrefixHits: 10}
	for name, want := range map[string]float64{
		"vllm:num_requests_running": 1, "vllm:num_requests_waiting": 2, "cascade_emulator_frozen_requests": 3, "vllm:kv_cache_usage_perc": 0.1,
		"cascade_emulator_reserved_blocks": 5, "vllm:num_preemptions_total": 6, "vllm:prompt_tokens_total": 7, "vllm:generation_tokens_total": 8,
		"vllm:prefix_cache_queries_total": 9, "vllm:prefix_cache_hits_total": 10,
	} {
		if got := metric(t, e, name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	all := metricsOf(e)
	for _, want := range []string{`reason="capacity"} 2`, `reason="deferred"} 0`, `enable_prefix_caching="False"`, `num_gpu_blocks="40"`, `kv_cache_size_tokens="640"`} {
		if !strings.Contains(all, want) {
			t.Errorf("no %s in\n%s", want, all)
		}
	}
}

// A request made before Run waits for it.
func TestBeforeRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, Config{})
		answered := make(chan int, 1)
		go func() { answered <- serveRequest(e, post("/v1/completions", `{"prompt":[1]}`)).Code }()
		synctest.Wait()
		if w := serveRequest(e, httptest.NewRequest("GET", "/health", nil)); w.Code != http.StatusServiceUnavailable {
			t.Errorf("health before Run: %d", w.Code)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- e.Run(ctx) }()
		if code := <-answered; code != http.StatusOK {
			t.Errorf("status %d", code)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// slowWriter blocks in Write until it is released.
type slowWriter struct {
	*httptest.ResponseRecorder
	begun, gone chan struct{}
	once        sync.Once
}

func (w *slowWriter) Write(b []byte) (int, error) {
	w.once.Do(func() { close(w.begun); <-w.gone })
	return w.ResponseRecorder.Write(b)
}

// A client that does not read delays no other client, and later receives the missed tokens in one
// chunk.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, stop := start(t, Config{})
		defer stop()
		w := &slowWriter{ResponseRecorder: httptest.NewRecorder(), begun: make(chan struct{}), gone: make(chan struct{})}
		returned := make(chan struct{})
		go func() {
			defer close(returned)
			e.Handler().ServeHTTP(w, post("/v1/completions", `{"prompt":[1,2],"max_tokens":50,"ignore_eos":true,"stream":true,"return_token_ids":true}`))
		}()
		<-w.begun
		begin := time.Now()
		complete(t, e, `{"prompt":[3,4],"max_tokens":100,"ignore_eos":true}`)
		if took := time.Since(begin); took > 1500*time.Millisecond {
			t.Errorf("another request took %v beside a client that does not read", took)
		}
		close(w.gone)
		<-returned
		if got := strings.Count(w.Body.String(), "data: {"); got != 2 {
			t.Errorf("%d chunks, want the first and one with the rest", got)
		}
	})
}

// deadlineWriter records the deadline that a handler leaves behind.
type deadlineWriter struct {
	*httptest.ResponseRecorder
	set  int
	last time.Time
}

func (w *deadlineWriter) SetWriteDeadline(t time.Time) error {
	w.set, w.last = w.set+1, t
	return nil
}

// A kept-alive connection keeps no deadline from an earlier answer.
func TestDeadlinesEndWithTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, stop := start(t, Config{})
		defer stop()
		for _, stream := range []string{"true", "false"} {
			w := &deadlineWriter{ResponseRecorder: httptest.NewRecorder()}
			e.Handler().ServeHTTP(w, post("/v1/completions", `{"prompt":"a","ignore_eos":true,"stream":`+stream+`}`))
			if w.set < 2 || !w.last.IsZero() {
				t.Errorf("stream=%s: %d deadlines set, the last one %v", stream, w.set, w.last)
			}
		}
	})
}

// The number of waiting requests is bounded, so that a queue cannot exhaust the memory.
func TestWaitingIsBounded(t *testing.T) {
	e := newEngine(t, Config{})
	e.stats.Waiting = maxWaiting
	if w := serveRequest(e, post("/v1/completions", `{"prompt":[1]}`)); w.Code != http.StatusServiceUnavailable {
		t.Errorf("status %d", w.Code)
	}
}

func TestConfig(t *testing.T) {
	ok := Config{Model: "m", Profile: plainProfile()}
	for _, bad := range []string{
		"Model=", "Speed=-1", "TensorParallel=-1", "BlockTokens=-1", "SlotBytes=12", "KVTokens=3", "Context=1", "Context=5000", "MaxBatch=-1",
		"Adapters=m", "Blocks=" + strings.Repeat("d", kvport.MaxDir+1), "Blocks=d TensorParallel=3",
	} {
		c := ok
		testkit.NoError(t, testkit.SetFields(&c, strings.Fields(bad)))
		field, _, _ := strings.Cut(bad, "=")
		_, err := New(c)
		testkit.WantError(t, err, field)
	}
	for name, edit := range map[string]func(*Config){
		"Model":   func(c *Config) { c.Model = " m" },
		"Profile": func(c *Config) { c.Profile.D0 = 0 },
		"Max":     func(c *Config) { c.MaxBatch, c.MaxBatchedTokens = -2, -1 },
		"Faults":  func(c *Config) { c.Faults.StreamInterval = -1 },
	} {
		c := ok
		edit(&c)
		_, err := New(c)
		testkit.WantError(t, err, name)
	}
	c := ok.withDefaults()
	if c.Context != 4096 || c.BlockTokens != 16 || c.MaxBatch != 8 || c.MaxBatchedTokens != 8192 || c.SlotBytes != 64 || c.Speed != 1 {
		t.Errorf("defaults: %+v", c)
	}
	c = Config{Model: "m", Profile: plainProfile(), TensorParallel: 2}.withDefaults()
	if c.KVTokens != 8192 || c.layout().Regions != 2 {
		t.Errorf("two ranks: %d KV tokens, %d regions", c.KVTokens, c.layout().Regions)
	}
}

func TestBodyLimits(t *testing.T) {
	e := newEngine(t, Config{})
	r := post("/v1/completions", "")
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat(" ", maxBody+1))), -1
	if w := serveRequest(e, r); w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("endless body: %d", w.Code)
	}
	r = post("/v1/completions", "")
	r.ContentLength = maxBody + 1
	if w := serveRequest(e, r); w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("large content-length: %d", w.Code)
	}
	deep := strings.Repeat("[", 10<<20)
	if w := serveRequest(e, post("/v1/completions", deep)); w.Code != http.StatusBadRequest {
		t.Errorf("deep nesting: %d", w.Code)
	}
}
