package frontend

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/migrator/internal/enginestate"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

// countSteps makes the engine answer /metrics with the counter of an engine's core, and all else with pass.
func (e *engine) countSteps(steps *atomic.Int64, pass http.HandlerFunc) {
	e.passthrough.Store(ptr(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			fmt.Fprintf(w, "vllm:iteration_tokens_total_count %d\n", steps.Load())
			return
		}
		io.Copy(io.Discard, r.Body)
		pass(w, r)
	}))
}

// call sends a request to the server and returns its status and answer when it has ended.
func (s *testServer) call(method, path, body string) chan string {
	got := make(chan string, 1)
	go func() {
		req, err := http.NewRequest(method, "http://"+s.url+path, strings.NewReader(body))
		if err != nil {
			got <- err.Error()
			return
		}
		resp, err := s.client.Do(req)
		if err != nil {
			got <- err.Error()
			return
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		if err != nil {
			answer = append(answer, err.Error()...)
		}
		got <- fmt.Sprint(resp.StatusCode, " ", resp.Header.Get(length.RefusedHeader), " ", string(answer))
	}()
	return got
}

// restart restarts the server's engine, whose metrics are then read.
func (s *testServer) restart(t testing.TB, e *engine) {
	e.unhealthy.Store(true)
	s.waitForReady(t, false)
	e.unhealthy.Store(false)
	s.waitForReady(t, true)
	waitFor(t, func() bool { return memory.listensAt(s.url) }) // a moment later
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
		f.restart(t, e)
		if got := <-f.call("POST", "/v1/completions", longRequest); !strings.HasPrefix(got, "200 ") {
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

// TestPassThroughAnswersSoon checks requests that an engine answers without computing tokens: it has as
// long as a stream may pause, not as long as a prompt may take.
func TestPassThroughAnswersSoon(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		stuck := make(chan struct{})
		e.passthrough.Store(ptr(func(http.ResponseWriter, *http.Request) { <-stuck }))
		defer close(stuck)
		defer within(t, 2*f.cfg.HangTimeout)()
		for _, c := range []chan string{f.call("GET", "/v1/models", ""), f.call("POST", "/tokenize", `{"prompt":"x"}`)} {
			if got := <-c; !strings.HasPrefix(got, "502  ") {
				t.Error(got)
			}
		}
	})
	// An answer that has begun takes its time.
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		e.passthrough.Store(ptr(func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			time.Sleep(4 * f.cfg.HangTimeout)
			io.WriteString(w, "late")
		}))
		if got := <-f.call("GET", "/v1/responses/x", ""); got != "200  late" {
			t.Error(got)
		}
	})
}

// TestRefusalsAreNoProgress checks that what the HTTP server of a hung engine refuses does not pass for
// tokens of its core.
func TestRefusalsAreNoProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := newRescueFleet(t, 2, nil)
		<-f.start(longRequest)
		f.engines[0].hang(t)
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
		if f.servers[0].Status().EngineHangs != 1 {
			t.Error("an engine that only refuses counts as one that makes progress")
		}
		<-waiting
	})
}

// TestHungEngineEndsPinnedStreams checks a stream that no other engine can continue: it waits for the
// hung one, but its client is not left without an answer for as long as a prompt may take.
func TestHungEngineEndsPinnedStreams(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		e.set(func(int, *http.Request) { time.Sleep(10 * time.Millisecond) }, nil)
		got := f.call("POST", "/v1/completions", `{"prompt":"x","max_tokens":7000,"stream":true,"stop":["q"]}`)
		waitFor(t, func() bool { return f.Status().Load.Running == 1 })
		began := time.Now()
		e.hang(t)
		answer := <-got
		if took := time.Since(began); took < f.cfg.HangTimeout || took > f.cfg.HangTimeout+2*enginestate.MinPause || !strings.Contains(answer, "makes no progress") {
			t.Errorf("after %v: %.300s", took, answer[max(0, len(answer)-300):])
		}
	})
}
