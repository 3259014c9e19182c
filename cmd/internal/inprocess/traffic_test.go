package inprocess

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/policies"
)

// oracle computes the answer that every replica must give: it is an engine of the same model that
// runs as fast as this host allows.
type oracle struct {
	server *httptest.Server
	mu     sync.Mutex
	known  map[string]string
}

func newOracle(t *testing.T, r *fleetHarness) *oracle {
	t.Helper()
	m, _ := r.cfg.Fleet.Model(llm)
	var adapters []string
	for _, a := range m.Adapters {
		adapters = append(adapters, a.Name)
	}
	engine, err := emulator.New(emulator.Config{
		Model: llm, Adapters: adapters, Context: m.Context, Profile: r.cfg.Fleet.Profiles[llm].Scale(10_000), Vocabulary: r.vocabulary,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- engine.Run(ctx) }()
	o := &oracle{server: httptest.NewServer(engine.Handler()), known: make(map[string]string)}
	t.Cleanup(func() {
		o.server.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return o
}

// text returns the text that follows a body's prompt.
func (o *oracle) text(body []byte) (string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s, ok := o.known[string(body)]; ok {
		return s, nil
	}
	resp, err := o.server.Client().Post(o.server.URL+"/v1/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the oracle answers %s: %s: %w", resp.Status, answer, err)
	}
	s := gjson.GetBytes(answer, "choices.0.text").Str
	o.known[string(body)] = s
	return s, nil
}

// events reads a completions stream to its end.
type events struct {
	text   strings.Builder
	tokens int    // at least the number of events with text
	failed string // the error event, if any
	done   bool   // received [DONE]
}

// read reads events until the stream ends, and calls each after every event.
func (e *events) read(body io.Reader, each func()) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		switch v := gjson.ParseBytes(data); {
		case string(data) == "[DONE]":
			e.done = true
		case v.Get("error").Exists():
			e.failed = string(data)
		default:
			e.text.WriteString(v.Get("choices.0.text").Str)
			e.tokens++
		}
		if each != nil {
			each()
		}
	}
	return lines.Err()
}

// live is a stream that a client is reading.
type live struct {
	stage  string
	body   []byte
	begun  chan struct{} // closed at its first token
	ended  chan struct{} // closed at its end
	count  atomic.Int64  // events so far
	cancel context.CancelFunc
	events       // valid once ended
	err    error // also: how the connection ended
}

// stream starts a stream and returns after its first token.
func (r *fleetHarness) stream(body []byte) *live {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	resp, err := r.open(ctx, "/v1/completions", "", bytes.NewReader(withStream(body)))
	if err != nil {
		cancel()
		r.t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		cancel()
		r.t.Fatalf("stream: %s: %s", resp.Status, text)
	}
	s := &live{stage: replyOf(resp).stage, body: body, begun: make(chan struct{}), ended: make(chan struct{}), cancel: cancel}
	go func() {
		defer close(s.ended)
		defer resp.Body.Close()
		s.err = s.read(resp.Body, func() {
			if s.count.Add(1) == 1 {
				close(s.begun)
			}
		})
	}()
	r.t.Cleanup(func() { cancel(); <-s.ended })
	select {
	case <-s.begun:
	case <-s.ended:
		r.t.Fatalf("the stream ended before its first token: %v %s", s.err, s.failed)
	case <-time.After(patience):
		r.t.Fatal("the stream does not begin")
	}
	return s
}

// wait waits for the stream's end.
func (s *live) wait(t *testing.T) {
	t.Helper()
	select {
	case <-s.ended:
	case <-time.After(patience):
		t.Fatalf("a stream does not end; it has %d events", s.count.Load())
	}
}

// withStream returns the body with the option to stream.
func withStream(body []byte) []byte {
	return append(body[:len(body)-1:len(body)-1], `,"stream":true}`...)
}

// traffic is a load of requests of mixed size, plain and streamed. It checks that each is answered
// completely by the stage of the plan that routed it.
type traffic struct {
	r      *fleetHarness
	oracle *oracle
	sizes  []int
	output int
	plans  sync.Map       // by epoch; the stages of requests that other plans routed are not checked
	stop   func()         // ends the load and waits
	began  []atomic.Int64 // start time of each worker's present request; in ns since the epoch

	sent, streams, failed, cut atomic.Int64

	mu    sync.Mutex
	first []string         // the first few failures
	limit time.Time        // requests that began before it may be cut
	may   func(error) bool // in ways for which it returns true
}

// newTraffic starts workers. Each body has one of the sizes, and each answer has output tokens.
func newTraffic(r *fleetHarness, workers, output int, sizes ...int) *traffic {
	f := &traffic{r: r, oracle: newOracle(r.t, r), sizes: sizes, output: output, began: make([]atomic.Int64, workers)}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			for n := i; ctx.Err() == nil; n++ {
				size := f.sizes[rng.IntN(len(f.sizes))]
				began := time.Now()
				f.began[i].Store(began.UnixNano())
				err := f.sendOne(prompt(size, f.output), n%3 == 0)
				f.sent.Add(1)
				if err != nil {
					f.fail(began, fmt.Errorf("%d bytes: %w", size, err))
				}
			}
		})
	}
	f.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	r.t.Cleanup(f.stop)
	return f
}

// expect records a plan before it can route requests.
func (f *traffic) expect(p policies.Plan) { f.plans.Store(p.Epoch, p) }

// killDuring kills a component of the fleet. It may cut the requests in progress in a way that may
// allows; no other request may fail.
func (f *traffic) killDuring(kill func(), may func(error) bool) {
	f.mu.Lock()
	f.limit, f.may = time.Now().Add(time.Hour), may
	f.mu.Unlock()
	kill()
	f.mu.Lock()
	f.limit = time.Now()
	f.mu.Unlock()
}

func (f *traffic) fail(began time.Time, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if began.Before(f.limit) && f.may(err) {
		f.cut.Add(1)
		return
	}
	f.failed.Add(1)
	if len(f.first) < 5 {
		f.first = append(f.first, err.Error())
	}
}

// report fails the test if a request did.
func (f *traffic) report() {
	f.r.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.r.t.Logf("%d requests, %d of them streams: %d failed, %d were cut with their replica", f.sent.Load(), f.streams.Load(), f.failed.Load(), f.cut.Load())
	if f.failed.Load() > 0 {
		f.r.t.Errorf("%d requests failed; the first:\n%s", f.failed.Load(), strings.Join(f.first, "\n"))
	}
	if f.sent.Load() == 0 {
		f.r.t.Error("nothing was sent")
	}
}

// waitForRequests waits until n more requests have been answered.
func (f *traffic) waitForRequests(n int64) {
	f.r.t.Helper()
	goal := f.sent.Load() + n
	f.r.waitFor(fmt.Sprintf("%d requests", n), func() bool { return f.sent.Load() >= goal })
}

// waitForAll waits until all requests in progress have been answered.
func (f *traffic) waitForAll() {
	f.r.t.Helper()
	now := time.Now().UnixNano()
	for i := range f.began {
		f.r.waitFor("every worker makes another request", func() bool { return f.began[i].Load() > now })
	}
}

// sendOne sends one request and checks the answer.
func (f *traffic) sendOne(body []byte, stream bool) error {
	want, err := f.oracle.text(body)
	if err != nil {
		return err
	}
	sent := body
	if stream {
		f.streams.Add(1)
		sent = withStream(body)
	}
	resp, err := f.r.open(context.Background(), "/v1/completions", "", bytes.NewReader(sent))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	got := replyOf(resp)
	if got.status != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		return fmt.Errorf("status %d, stage %q, %v: %s", got.status, got.stage, resp.Header, text)
	}
	if got.stage == "" || got.epoch == 0 {
		return errors.New("the answer names no stage")
	}
	if p, ok := f.plans.Load(got.epoch); ok {
		plan := p.(policies.Plan)
		// Four bytes per token, by content-length.
		if stage := fmt.Sprintf("s%d", plan.StageOf(policies.Tokens(len(sent)/4))); got.stage != stage {
			return fmt.Errorf("stage %s by epoch %d, want %s", got.stage, got.epoch, stage)
		}
	}
	if !stream {
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		if answer := gjson.GetBytes(text, "choices.0.text").Str; answer != want {
			return fmt.Errorf("answer %.80q, want %.80q", answer, want)
		}
		return nil
	}
	var e events
	if err := e.read(resp.Body, nil); err != nil {
		return err
	}
	if e.failed != "" || !e.done || e.text.String() != want {
		return fmt.Errorf("stream: done %v, error %q, %d events, text %.80q, want %.80q", e.done, e.failed, e.tokens, e.text.String(), want)
	}
	return nil
}
