package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/httpserver"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/length"
)

// TestAttackBodyMemory checks that unfinished bodies and large headers cannot hold more
// memory than the budget: what comes beyond it is refused at once, for proxies to send
// elsewhere, and everything is given back after a while.
func TestAttackBodyMemory(t *testing.T) {
	const size, attackers = 64 << 10, 40
	for _, major := range []int{1, 2} {
		for name, request := range map[string]func(*testing.T, *testServer) *http.Request{
			"bodies": func(t *testing.T, f *testServer) *http.Request {
				return unfinished(t, "POST", "http://"+f.url+"/v1/completions", "{"+strings.Repeat(" ", size-2))
			},
			"headers": func(t *testing.T, f *testServer) *http.Request {
				r := unfinished(t, "POST", "http://"+f.url+"/tokenize", "{")
				r.Header.Set("X-Large", strings.Repeat("x", 32<<10))
				return r
			},
		} {
			runInBubble(t, fmt.Sprintf("%s HTTP/%d", name, major), func(t *testing.T) {
				e := newEngine(t)
				f := startServer(t, e.URL, func(c *Config) { c.MaxBody, c.MaxBodies = size, 4*size })
				c := &http.Client{Transport: memory.transport(t, major)}
				answers := make(chan *http.Response, attackers)
				begun := time.Now()
				for range attackers {
					r := request(t, f)
					go func() {
						resp, err := c.Do(r)
						if err != nil {
							t.Error(err)
						} else {
							resp.Body.Close()
						}
						answers <- resp
					}()
				}
				refused, slow := 0, 0
				for range attackers {
					resp := <-answers
					if held := f.bodies.Held(); held > 4*size {
						t.Errorf("%d bytes are held", held)
					}
					switch {
					case resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get(length.RefusedHeader) != "" && resp.Header.Get("Retry-After") != "":
						if refused++; time.Since(begun) > time.Second {
							t.Errorf("a refusal took %v", time.Since(begun))
						}
					case resp.StatusCode == http.StatusRequestTimeout:
						if slow++; time.Since(begun) > 2*time.Duration(httpserver.Window) {
							t.Errorf("a body that stalls is given up after %v", time.Since(begun))
						}
					default:
						t.Errorf("answered %s", resp.Status)
					}
				}
				if refused < attackers/2 || slow == 0 {
					t.Errorf("%d refused, %d given up", refused, slow)
				}
				waitFor(t, func() bool { return f.bodies.Held() == 0 })
				if resp, got := post(t, c, f.url, "/v1/completions", `{"prompt":"x"}`); resp.StatusCode != http.StatusOK {
					t.Errorf("afterwards: %s %s", resp.Status, got)
				}
			})
		}
	}
}

// TestAttackBodyMemorySparesPeers checks that clients that use up the memory for their
// bodies keep no stream of another replica from going on here.
func TestAttackBodyMemorySparesPeers(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		all := f.bodies.Share()
		if !all.Resize(f.cfg.MaxBodies) {
			t.Fatal("the budget is not empty")
		}
		defer all.Release()
		for address, want := range map[string]int{f.url: http.StatusServiceUnavailable, f.peer: http.StatusOK} {
			r := jsonRequest(address, "/v1/completions", `{"prompt":"x","max_tokens":1}`)
			r.Header.Set(ForwardHeader, "r1")
			resp, err := f.client.Do(r)
			testkit.NoError(t, err)
			if resp.Body.Close(); resp.StatusCode != want {
				t.Errorf("answered %s, want %d", resp.Status, want)
			}
		}
	})
}

// TestBodyPace checks that a body may arrive at the slowest pace that is allowed, and
// that it is bounded as a whole.
func TestBodyPace(t *testing.T) {
	for _, major := range []int{1, 2} {
		for _, test := range []struct {
			pieces int
			rate   int64 // configured; 0 for the default
			want   int
		}{{2, 0, http.StatusOK}, {100, 0, http.StatusRequestTimeout}, {2, httpserver.WindowBytes, http.StatusRequestTimeout}} {
			pieces, want := test.pieces, test.want
			runServer(t, func(c *Config) { c.BodyRate = test.rate }, func(t *testing.T, e *engine, f *testServer) {
				body, w := io.Pipe()
				written := make(chan struct{})
				defer func() {
					body.Close()
					<-written
				}()
				go func() {
					defer close(written)
					io.WriteString(w, `{"prompt":"`)
					for range pieces {
						time.Sleep(time.Duration(httpserver.Window) - time.Second)
						if _, err := io.WriteString(w, strings.Repeat("x", httpserver.WindowBytes)); err != nil {
							return
						}
					}
					io.WriteString(w, `"}`)
					w.Close()
				}()
				c := &http.Client{Transport: memory.transport(t, major)}
				resp, err := c.Post("http://"+f.url+"/v1/completions", "application/json", body)
				testkit.NoError(t, err)
				if resp.Body.Close(); resp.StatusCode != want {
					t.Errorf("HTTP/%d: %d pieces are answered %s", major, pieces, resp.Status)
				}
			})
		}
	}
}

// deadlineRecorder is a ResponseWriter that knows its read deadline.
type deadlineRecorder struct {
	*httptest.ResponseRecorder
	mu sync.Mutex
	at time.Time
}

func (w *deadlineRecorder) SetReadDeadline(at time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at = at
	return nil
}

func (w *deadlineRecorder) deadline() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.at
}

// lastWindowBody is a body that ends its request and then brings a whole window.
type lastWindowBody struct {
	stop  func()
	after func() error // the reads after that
	sent  bool
}

func (b *lastWindowBody) Read(p []byte) (int, error) {
	if len(p) < httpserver.WindowBytes {
		return len(p), nil
	}
	if b.sent {
		return 0, b.after()
	}
	b.sent = true
	b.stop()
	synctest.Wait() // until the deadline of the stop is set
	return len(p), nil
}

func (b *lastWindowBody) Close() error { return nil }

// TestStopWhileBodyArrives checks that bytes that arrive while the server stops do not prolong the
// deadline that the stop has ended.
func TestStopWhileBodyArrives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		w := &deadlineRecorder{ResponseRecorder: httptest.NewRecorder()}
		body := &lastWindowBody{stop: stop, after: func() error {
			if at := w.deadline(); at.After(time.Now()) {
				t.Errorf("the body may arrive for another %v", time.Until(at))
			}
			return errors.New("timeout")
		}}
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/completions", body)
		memory := httpserver.NewBudget(1 << 20).Share()
		srv := &Server{cfg: Config{MaxBody: 1 << 19, BodyTimeout: time.Minute}}
		if _, ok := srv.readBody(w, r, &memory); ok {
			t.Error("a cut body was read")
		}
	})
}

// lateWriter is a ResponseWriter whose read deadline takes a second to set, so that the
// handler could return meanwhile.
type lateWriter struct {
	*httptest.ResponseRecorder
	returned atomic.Bool // the handler has
	late     atomic.Bool // a deadline was set after that
}

func (w *lateWriter) SetReadDeadline(at time.Time) error {
	if !at.IsZero() && at.Before(time.Unix(2, 0)) {
		time.Sleep(time.Second)
		w.late.Store(w.returned.Load())
	}
	return nil
}

// endedBody is a body whose reads fail when the context ends.
type endedBody struct{ ctx context.Context }

func (b endedBody) Read([]byte) (int, error) {
	<-b.ctx.Done()
	return 0, errors.New("the stream was reset")
}

func (b endedBody) Close() error { return nil }

// TestAttackResetWhileReading checks that a client that resets its stream while its body is
// read cannot make the server use a ResponseWriter whose handler has returned: net/http
// panics then, and takes the process with it.
func TestAttackResetWhileReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, reset := context.WithCancel(t.Context())
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/completions", endedBody{ctx})
		w := &lateWriter{ResponseRecorder: httptest.NewRecorder()}
		memory := httpserver.NewBudget(1 << 20).Share()
		srv := &Server{cfg: Config{MaxBody: 1 << 20, BodyTimeout: time.Minute}}
		time.AfterFunc(time.Second, reset)
		if _, ok := srv.readBody(w, r, &memory); ok {
			t.Error("a cut body was read")
		}
		w.returned.Store(true)
		time.Sleep(time.Minute)
		if w.late.Load() {
			t.Error("the read deadline was set after the handler had returned")
		}
	})
}
