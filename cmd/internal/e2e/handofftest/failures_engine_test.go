package handofftest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/common/expfmt"
	prom "github.com/prometheus/common/model"
	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// blockTokens is the block size of the engines, vLLM's on CPUs.
const blockTokens = 32

// vocabulary is shared by the tests: loading it takes longer than most.
var vocabulary = sync.OnceValues(model.NewVocabulary)

// engine is an emulated engine's place: its process can be killed and started again.
type engine struct {
	t      *testing.T
	net    *network
	id     string // of its replica
	api    string // address
	config func(*emulator.Config)

	// fetching is called before the engine gets a leg that continues a stream and fetches its KV, not
	// one that copies KV before the freeze. answer changes the answer to a
	// handoff leg. Both may be nil, and are set before the request.
	fetching func(*http.Request)
	answer   func(body string) string
	// breakFetch, if it is not nil, is called before the engine fetches KV; with an error nothing arrives.
	breakFetch func() error

	*emulator.Engine // the process
	kill             func()
	dead             chan struct{} // closed when the process has ended
	err              error         // why; fixed when dead is closed

	mu     sync.Mutex
	frozen chan struct{} // closed when it goes on; nil: it runs
}

// newEngine runs an engine until the test ends.
func newEngine(t *testing.T, n *network, index int, config func(*emulator.Config)) *engine {
	t.Helper()
	e := &engine{
		t: t, net: n, config: config, id: string(emulatedReplica(index)), api: fmt.Sprintf("127.0.0.1:%d", 8000+index),
	}
	if n.engines == nil {
		n.engines = make(map[string]*engine)
	}
	n.engines[e.id] = e
	e.start()
	t.Cleanup(func() { e.thaw(); e.kill() })
	return e
}

// start starts a process.
func (e *engine) start() {
	t := e.t
	t.Helper()
	c := emulator.Config{
		Model: "m", BlockTokens: blockTokens, KVTokens: 16384, Context: 8192, Vocabulary: testkit.Must(vocabulary()),
		Profile:     cost.Profile{Name: "plain", Unit: "seconds", Ranks: 1, D0: 10e-3, D1: 1e-3, D2: 0.01e-3, KVBytesPerToken: 1024, KVTokens: 16384, MaxBatch: 8},
		KVConnector: &connection{e: e, ended: make(chan struct{})},
		Logger:      slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if e.config != nil {
		e.config(&c)
	}
	e.Engine = testkit.Must(emulator.New(c))
	ctx, cancel := context.WithCancel(context.Background())
	server := &http.Server{Handler: http.HandlerFunc(e.serve)}
	listener := testkit.Must(e.net.Listen("tcp", e.api))
	dead, served := make(chan struct{}), make(chan struct{})
	go func() { defer close(served); server.Serve(listener) }()
	go func() {
		defer close(dead)
		e.err = e.Run(ctx)
		if e.err != nil {
			t.Errorf("engine %s died: %v", e.id, e.err)
		}
	}()
	e.dead = dead
	e.kill = func() {
		server.Close()
		cancel()
		<-dead
		<-served
	}
}

// freeze stops the whole process, as SIGSTOP does, until thaw.
func (e *engine) freeze() {
	e.mu.Lock()
	e.frozen = make(chan struct{})
	e.mu.Unlock()
	e.Hang()
}

func (e *engine) thaw() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.frozen != nil {
		close(e.frozen)
		e.frozen = nil
	}
	e.Resume()
}

// waitWhileFrozen returns false if the request ends meanwhile.
func (e *engine) waitWhileFrozen(ctx context.Context) bool {
	e.mu.Lock()
	frozen := e.frozen
	e.mu.Unlock()
	if frozen == nil {
		return true
	}
	select {
	case <-frozen:
		return true
	case <-ctx.Done():
		return false
	}
}

// serve passes requests to the process, and checks those that fetch KV: their prompts have as many ids
// as the KV.
func (e *engine) serve(w http.ResponseWriter, r *http.Request) {
	if !e.waitWhileFrozen(r.Context()) {
		return
	}
	if !strings.HasPrefix(r.URL.Path, "/v1/") || r.Method != http.MethodPost {
		e.Handler().ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	params := gjson.GetBytes(body, "kv_transfer_params")
	switch {
	case params.Get("do_remote_decode").Bool():
		e.serveHandoff(w, r)
		return
	case params.Get("do_remote_prefill").Bool():
		CheckFetch(e.t, body, params)
		if e.fetching != nil && gjson.GetBytes(body, "stream").Bool() {
			e.fetching(r)
		}
		if !e.waitWhileFrozen(r.Context()) {
			return
		}
	}
	e.Handler().ServeHTTP(w, r)
}

// serveHandoff serves a handoff leg.
func (e *engine) serveHandoff(w http.ResponseWriter, r *http.Request) {
	got := httptest.NewRecorder()
	e.Handler().ServeHTTP(got, r)
	text := got.Body.String()
	if e.answer != nil {
		text = e.answer(text)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(got.Code)
	io.WriteString(w, text)
}

// metric returns a sample, of the labels' source if that is not "".
func (e *engine) metric(name, source string) float64 {
	e.t.Helper()
	w := httptest.NewRecorder()
	e.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	parser := expfmt.NewTextParser(prom.LegacyValidation)
	families := testkit.Must(parser.TextToMetricFamilies(w.Body))
	for _, m := range families[name].GetMetric() {
		for _, label := range m.GetLabel() {
			if source == "" || label.GetName() == "source" && label.GetValue() == source {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	e.t.Fatalf("no metric %s %s", name, source)
	return 0
}
