package frontend

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/length"
)

// TestEngineRefuses checks that an engine's refusal reaches the client as it is, and is
// marked for a proxy to try another replica once if the engine is unavailable. A peer's
// leg is then served by the own engine.
func TestEngineRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fa, fb, a, b, p, _ := newForwardingPair(t)
		for _, body := range []string{`{"model":"m","prompt":"x"}`, `{"model":"m","prompt":"x","stream":true}`} {
			for status, refused := range map[int]string{503: length.RefusedLost, 500: "", 429: ""} {
				b.set(nil, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", status) })
				for attempt, want := range map[string]string{"": "", "1": refused, "2": ""} {
					req := testkit.Must(http.NewRequest("POST", "http://"+fb.url+"/v1/completions", strings.NewReader(body)))
					req.Header.Set(length.AttemptHeader, attempt)
					resp := testkit.Must(fb.client.Do(req))
					got := testkit.Must(io.ReadAll(resp.Body))
					resp.Body.Close()
					if mark := resp.Header.Get(length.RefusedHeader); resp.StatusCode != status || string(got) != "no\n" || mark != want {
						t.Errorf("attempt %q: %d %q %q, want %d %q", attempt, resp.StatusCode, got, mark, status, want)
					}
				}
				p.peer.Store(&fb.peer)
				before := a.calls.Load()
				if resp, _ := post(t, fa.client, fa.url, "/v1/completions", body); (resp.StatusCode == http.StatusOK) != (refused != "") || (a.calls.Load() > before) != (refused != "") {
					t.Errorf("by way of a peer that answers %d: %d, %d calls", status, resp.StatusCode, a.calls.Load()-before)
				}
			}
		}
	})
}

// TestRefusalInTheGap checks the answer to a request that comes after the
// engine's death and before a health check has noticed it.
func TestRefusalInTheGap(t *testing.T) {
	runServer(t, func(c *Config) { c.HealthInterval = time.Hour }, func(t *testing.T, e *engine, f *testServer) {
		e.Listener.Close()
		e.CloseClientConnections()
		for _, path := range []string{"/v1/completions", "/tokenize"} {
			f.ready.Store(true)
			rec := &recorder{header: http.Header{}}
			req, _ := http.NewRequest("POST", path, strings.NewReader(`{"prompt":"x"}`))
			f.Handler().ServeHTTP(rec, req)
			if rec.status != 503 || rec.header.Get(length.RefusedHeader) == "" {
				t.Errorf("%s: %d %v", path, rec.status, rec.header)
			}
			f.waitForReady(t, false)
		}
	})
}

// TestResentRequest checks a request whose connection is lost after the engine
// has begun it, and that the transport sends again on another one. The engine
// then answers that the leg exists, which is no error of the client.
func TestResentRequest(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		const body = `{"model":"m","prompt":"x","stream":true}`
		taken := func(w http.ResponseWriter) { http.Error(w, "the leg is running", http.StatusConflict) }
		var begun sync.Map
		var twice atomic.Bool
		e.set(nil, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			if _, again := begun.LoadOrStore(r.Header.Get(LegHeader), true); !again {
				panic(http.ErrAbortHandler)
			}
			twice.Store(true)
			taken(w)
		})
		// Only a connection that has served a request can be closed unnoticed.
		waitFor(t, func() bool {
			if resp, got := post(t, f.client, f.url, "/tokenize", body); resp.StatusCode != http.StatusOK {
				t.Fatalf("%d %s", resp.StatusCode, got)
			}
			if resp, got := post(t, f.client, f.url, "/v1/completions", body); resp.StatusCode != http.StatusBadGateway || resp.Header.Get(length.RefusedHeader) != "" {
				t.Fatalf("%d %v %s", resp.StatusCode, resp.Header, got)
			}
			return twice.Load()
		})
		e.set(nil, func(w http.ResponseWriter, _ *http.Request) { taken(w) })
		if resp, got := post(t, f.client, f.url, "/v1/completions", body); resp.StatusCode != http.StatusConflict {
			t.Errorf("a conflict with something else: %d %s", resp.StatusCode, got)
		}
	})
}

// recorder is a ResponseWriter without deadlines or flushing.
type recorder struct {
	header http.Header
	status int
	body   strings.Builder
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(b []byte) (int, error) { return r.body.Write(b) }
