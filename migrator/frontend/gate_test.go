package frontend

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
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

// TestRoutes checks which methods and paths are served, and that no other request reaches
// the engine: its operator's paths, and paths that it would resolve to one of them.
func TestRoutes(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		var passed atomic.Int64
		e.pass(func(_ http.ResponseWriter, r *http.Request) {
			if r.UserAgent() == "client" { // the front end asks for the engine's models itself
				passed.Add(1)
			}
		})
		clients := clientsOf(t)
		for _, test := range []struct {
			requests string // "METHOD path", separated by commas
			want     int
		}{
			{"GET /v1/models, GET /v1/models/, GET /v1/models/org%2Fname, GET /v1/models/a..b, GET /v1/models%2f, GET /v1/responses/x, GET /version, GET /ping, POST /ping", 200},
			{"POST /tokenize, POST /v1/responses/x/cancel, POST /v1/messages/count_tokens, POST /v2/rerank", 200},
			{"GET /v1/models/%2e%2e/%2e%2e/pause, GET /v1/models/..%2f..%2fpause, GET /v1/models/%2e%2e/%2e%2e/pause/, GET /v1/models/%2e, GET /v1/models/%2fpause", 404},
			{"GET /pause, POST /pause, POST /v1/kv_connector/rpc, POST /inference/v1/generate, POST /abort_requests, POST /v1/load_lora_adapter", 404},
			{"GET /metrics, GET /metrics/, GET /load, GET /server_info, GET /docs, GET /openapi.json, GET /, POST //tokenize, GET /v1/responses//cancel, GET /v1/models/..;/pause, GET /v1/models/a%3Bb, GET /v1/models/a%5Cb, GET /v1/models/a%253Fb, GET /v1/models/a%00", 404},
			{"PUT /tokenize, post /tokenize, Post /v1/completions, GET /v1/completions, DELETE /v1/models, PATCH /v1/chat/completions, HEAD /v1/models, OPTIONS /tokenize, POST /health", 405},
		} {
			for _, request := range strings.Split(test.requests, ", ") {
				method, path, _ := strings.Cut(request, " ")
				for major, c := range clients {
					before := passed.Load() + e.calls.Load()
					r := testkit.Must(http.NewRequest(method, "http://"+f.url+path, nil))
					r.Header.Set("User-Agent", "client")
					resp, _ := do(t, c, r)
					if allow := resp.Header.Get("Allow"); (allow != "") != (test.want == 405) || strings.Contains(allow, method) {
						t.Errorf("HTTP/%d %s: %d, allowed are %q", major, request, resp.StatusCode, allow)
					}
					if reached := passed.Load() + e.calls.Load() - before; resp.StatusCode != test.want || (reached == 1) != (test.want == 200) {
						t.Errorf("HTTP/%d %s: %d, want %d; the engine got %d requests", major, request, resp.StatusCode, test.want, reached)
					}
				}
			}
		}
	})
}

// clientsOf returns a client of each version of HTTP.
func clientsOf(t *testing.T) map[int]*http.Client {
	return map[int]*http.Client{1: {Transport: memory.transport(t, 1)}, 2: {Transport: memory.transport(t, 2)}}
}

// TestAttackWithheldInAnyBody checks that no request takes a withheld field to the engine,
// whatever its method, its path and the form of its body.
func TestAttackWithheldInAnyBody(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		var seen atomic.Pointer[string]
		record := func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			text := string(b)
			seen.Store(&text)
		}
		e.pass(record)
		e.set(nil, record)
		clients := clientsOf(t)
		const json = `{"model":"m","prompt":"x","kv_transfer_params":{"remote_host":"evil"},"vllm_xargs":{"kv_transfer_params":"evil"}}`
		form, kind := formOf(t, [][2]string{{"model", "m"}, {"kv_transfer_params", "evil"}, {"vllm_xargs", `{"kv_transfer_params":"evil"}`}, {"ec_transfer_params", "evil"}})
		quoted := strings.NewReplacer(`name="kv_transfer_params"`, `name=kv_transfer_params`).Replace(form)
		split := strings.NewReplacer(`name="kv_transfer_params"`, `name*0="kv_transfer"; name*1="_params"`).Replace(form)
		for _, path := range []string{"/v1/completions", "/v1/chat/completions", "/tokenize", "/v1/responses", "/v1/responses/x", "/v1/responses/x/cancel", "/v1/models",
			"/v1/embeddings", "/v1/audio/speech", "/v1/audio/transcriptions", "/v1/audio/translations", "/health", "/ping", "/nowhere"} {
			for _, method := range []string{"POST", "post", "Post", "PUT", "PATCH", "DELETE", "GET", "HEAD", "OPTIONS", "QUERY"} {
				for _, body := range [][2]string{{"application/json", json}, {"text/plain", json}, {kind, json}, {kind, form}, {kind, quoted}, {kind, split}, {"application/x-www-form-urlencoded", "kv_transfer_params=evil"}} {
					for major, c := range clients {
						seen.Store(nil)
						req := jsonRequest(f.url, path, body[1], "Content-Type", body[0])
						req.Method = method
						do(t, c, req)
						if got := seen.Load(); got != nil && (strings.Contains(*got, "evil") || strings.Contains(*got, "transfer_params")) {
							t.Errorf("HTTP/%d %s %s as %s: the engine got %s", major, method, path, body[0], *got)
						}
					}
				}
			}
		}
	})
}

// formOf returns a form with fields, and its Content-Type.
func formOf(t *testing.T, fields [][2]string) (form, contentType string) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, field := range fields {
		testkit.NoError(t, w.WriteField(field[0], field[1]))
	}
	testkit.NoError(t, w.Close())
	return b.String(), w.FormDataContentType()
}

// TestAttackUnfinishedBody checks that every early answer reaches a client whose body
// stalls, at once, and that such a body neither holds a drain open nor costs the other
// requests of an HTTP/2 connection anything.
func TestAttackUnfinishedBody(t *testing.T) {
	const limit = 1 << 10
	for _, major := range []int{1, 2} {
		for name, test := range map[string]struct {
			method, path, sent string
			draining           bool
			want               int
		}{
			"path":      {"POST", "/nowhere", "{", false, 404},
			"method":    {"PUT", "/tokenize", "{", false, 405},
			"GET":       {"GET", "/v1/models", "{", false, 400},
			"too large": {"POST", "/v1/completions", strings.Repeat(" ", limit+1), false, 413},
			"too slow":  {"POST", "/v1/completions", "{", false, 408},
			"refused":   {"POST", "/v1/completions", "{", true, 503},
			"passed":    {"POST", "/tokenize", "{", true, 503},
		} {
			runInBubble(t, fmt.Sprintf("%s HTTP/%d", name, major), func(t *testing.T) {
				e := newEngine(t)
				f := startServer(t, e.URL, func(c *Config) { c.MaxBody, c.BodyTimeout = limit, 3*time.Second })
				c := &http.Client{Transport: memory.transport(t, major)}
				if test.draining {
					f.ready.Store(false)
				}
				begun := time.Now()
				resp, _ := do(t, c, unfinished(t, test.method, "http://"+f.url+test.path, test.sent))
				if took := time.Since(begun); resp.StatusCode != test.want || (took > time.Second) != (test.want == 408) {
					t.Errorf("answered %s after %v, want %d", resp.Status, took, test.want)
				}
				if major == 2 {
					if resp, _ := do(t, c, testkit.Must(http.NewRequest("GET", "http://"+f.url+"/health", nil))); resp.Close {
						t.Error("the connection is closed for its other requests")
					}
				}
				begun = time.Now()
				f.Drain()
				f.awaitEnd()
				if took := time.Since(begun); took > 5*time.Second {
					t.Errorf("the drain took %v", took)
				}
			})
		}
	}
}

// TestAttackBodyAsRequests checks that what follows an early answer on an HTTP/1.1
// connection is not taken for another request.
func TestAttackBodyAsRequests(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		const inner = "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
		for _, first := range []string{"POST /nowhere", "GET /v1/models", "PUT /tokenize"} {
			for _, framing := range []string{fmt.Sprintf("Content-Length: %d\r\n\r\n", len(inner)), "Content-Length: 100000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n"} {
				conn := testkit.Must(memory.dial(t.Context(), "tcp", f.url))
				testkit.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
				go io.WriteString(conn, first+" HTTP/1.1\r\nHost: x\r\n"+framing+inner)
				r := bufio.NewReader(conn)
				resp := testkit.Must(http.ReadResponse(r, nil))
				if _, err := io.Copy(io.Discard, resp.Body); err != nil || !resp.Close {
					t.Errorf("%s, %q: %s %v, %v", first, framing, resp.Status, resp.Header, err)
				}
				if rest, err := io.ReadAll(r); len(rest) > 0 || err != nil {
					t.Errorf("%s, %q: after the answer came %q, %v", first, framing, rest, err)
				}
				conn.Close()
			}
		}
	})
}

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
						resp, _, err := tryDo(c, r)
						if err != nil {
							t.Error(err)
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
			resp, _ := do(t, f.client, jsonRequest(address, "/v1/completions", `{"prompt":"x","max_tokens":1}`, ForwardHeader, "r1"))
			if resp.StatusCode != want {
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
		if _, ok := srv.readBody(w, r, &memory, srv.cfg.MaxBody); ok {
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
		if _, ok := srv.readBody(w, r, &memory, srv.cfg.MaxBody); ok {
			t.Error("a cut body was read")
		}
		w.returned.Store(true)
		time.Sleep(time.Minute)
		if w.late.Load() {
			t.Error("the read deadline was set after the handler had returned")
		}
	})
}

// TestFirstRequest checks that a connection that is dialled before its request
// stays open as long as one between two requests, and that the header timeout
// counts from the first byte.
func TestFirstRequest(t *testing.T) {
	const head = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
	for name, test := range map[string]struct {
		wait  time.Duration // before each piece
		send  []string
		close time.Duration // after the last piece, without an answer; 0: it is answered
	}{
		"at once":     {0, []string{head}, 0},
		"late":        {clientIdleConn - 1, []string{head}, 0},
		"torn":        {headerTimeout - 1, []string{head[:14], head[14:]}, 0}, // http.Server reads the first 14 bytes separately
		"never":       {0, nil, clientIdleConn},
		"half a head": {time.Minute, []string{head[:14]}, headerTimeout},
		"slow head":   {headerTimeout / 2, []string{head[:1], head[1:2]}, headerTimeout / 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			lis := listen()
			d := newListeners(&Server{cfg: Config{WriteTimeout: defaultWriteTimeout}})
			s := d.serve(t.Context(), lis, &d.fromClients, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			here := testkit.Must(memory.dial(t.Context(), "tcp", lis.Addr().String()))
			defer func() {
				here.Close()
				synctest.Wait()
				s.Close()
				d.wg.Wait()
			}()
			for i, piece := range test.send {
				time.Sleep(test.wait)
				if i+1 < len(test.send) || test.close > 0 {
					if _, err := io.WriteString(here, piece); err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					continue
				}
				go io.WriteString(here, piece)
				resp, err := http.ReadResponse(bufio.NewReader(here), nil)
				if err != nil || resp.StatusCode != http.StatusOK {
					t.Errorf("%s: %v, %+v", name, err, resp)
				}
				return
			}
			begun := time.Now()
			got, err := io.ReadAll(here)
			if len(got) > 0 || err != nil && !errors.Is(err, io.ErrClosedPipe) || time.Since(begun) != test.close {
				t.Errorf("%s: closed after %v with %q (%v), want %v and nothing", name, time.Since(begun), got, err, test.close)
			}
		})
	}
}
