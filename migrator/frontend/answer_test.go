package frontend

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/httpserver/servertest"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

// unfinished returns a request whose body sends what was given and then stalls until the
// test ends.
func unfinished(t testing.TB, method, url, sent string) *http.Request {
	t.Helper()
	body, more := io.Pipe()
	t.Cleanup(func() { more.Close() })
	go io.WriteString(more, sent)
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	testkit.NoError(t, err)
	r.Header.Set("Content-Type", "application/json")
	return r
}

// TestAttackStopUnanswered checks that requests that have not begun when a drain's time
// ends are refused so that proxies send them elsewhere: wherever they wait, on both ports,
// in both versions of HTTP.
func TestAttackStopUnanswered(t *testing.T) {
	for _, major := range []int{1, 2} {
		for name, test := range map[string]struct {
			path, body       string
			peer, unfinished bool
		}{
			"stream":          {path: "/v1/completions", body: `{"prompt":"x","stream":true}`},
			"plain":           {path: "/v1/completions", body: `{"prompt":"x"}`},
			"passed":          {path: "/tokenize", body: `{"prompt":"x"}`},
			"unfinished body": {path: "/v1/completions", body: "{", unfinished: true},
			"peer's leg":      {path: "/v1/completions", body: `{"prompt":"x","stream":true}`, peer: true},
		} {
			runInBubble(t, fmt.Sprintf("%s HTTP/%d", name, major), func(t *testing.T) {
				defer within(t, 5*time.Second)()
				e := newEngine(t)
				e.set(nil, silent)
				e.pass(silent)
				f := startServer(t, e.URL, func(c *Config) { c.DrainTimeout = 20 * time.Millisecond })
				request := jsonRequest(f.url, test.path, test.body)
				switch {
				case test.unfinished:
					request = unfinished(t, "POST", "http://"+f.url+test.path, test.body)
				case test.peer:
					request = jsonRequest(f.peer, test.path, test.body, ForwardHeader, "r1")
				}
				c, answered := &http.Client{Transport: memory.transport(t, major)}, make(chan error, 1)
				go func() {
					resp, _, err := tryDo(c, request)
					if err == nil && (resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get(length.RefusedHeader) == "") {
						err = fmt.Errorf("answered %s %v", resp.Status, resp.Header)
					}
					answered <- err
				}()
				waitFor(t, func() bool { return !f.Server.inFlight.isIdle() })
				f.Drain()
				if err := <-answered; err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestAttackStopAssembled is TestAttackStopUnanswered for an unstreamed answer of which the
// engine has generated a part, and its client has nothing.
func TestAttackStopAssembled(t *testing.T) {
	runServer(t, func(c *Config) { c.DrainTimeout = 20 * time.Millisecond }, func(t *testing.T, e *engine, f *testServer) {
		const body = `{"model":"m","prompt":"x"}`
		f.post("/v1/completions", body) // from which the shape of answers is learnt
		hold := e.blockAt(2)
		defer close(hold)
		answered := f.start(body)
		waitFor(t, func() bool { return f.Status().Load.Running == 1 })
		f.Drain()
		if got := <-answered; !strings.HasPrefix(got, "503 1 ") {
			t.Errorf("answered %s", got)
		}
	})
}

// TestAttackHalfClose checks, on real sockets, that a client that ends its side of the
// connection before the answer gets none, instead of an empty one that looks good; and of
// a stream that was cut no regular end.
func TestAttackHalfClose(t *testing.T) {
	e := newEngine(t)
	hold := make(chan struct{})
	defer close(hold)
	e.pass(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		await(r, hold)
	})
	clients := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	f := startServer(t, e.URL, func(c *Config) { c.Listener = clients })
	for name, test := range map[string]struct {
		request string
		begins  bool // the answer begins before the client leaves
	}{
		"stream": {request: post1("/v1/completions", `{"prompt":"x","stream":true}`)},
		"plain":  {request: post1("/v1/completions", `{"prompt":"x"}`)},
		"passed": {request: post1("/tokenize", `{"prompt":"x"}`)},
		"begun":  {request: post1("/v1/completions", `{"prompt":"x","stream":true}`), begins: true},
	} {
		first := 0
		if test.begins {
			first = 2
		}
		e.set(func(n int, r *http.Request) {
			if n == first {
				await(r, hold)
			}
		}, nil)
		conn := testkit.Must(net.Dial("tcp", clients.Addr().String()))
		testkit.Must(io.WriteString(conn, test.request))
		var got []byte
		if test.begins {
			got = make([]byte, 20)
			testkit.Must(io.ReadFull(conn, got))
		}
		waitFor(t, func() bool { return !f.Server.inFlight.isIdle() })
		testkit.NoError(t, conn.(*net.TCPConn).CloseWrite())
		rest, _ := io.ReadAll(conn) // an error is as good as the end
		got = append(got, rest...)
		switch {
		case !test.begins && len(got) > 0:
			t.Errorf("%s: the client got %q", name, got)
		case test.begins && (!strings.HasPrefix(string(got), "HTTP/1.1 200") || strings.HasSuffix(string(got), "0\r\n\r\n")):
			t.Errorf("%s: the client got %q", name, got)
		}
		conn.Close()
	}
}

func post1(path, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
}

// TestNoAnswerIsNoSuccess checks that a handler that forgets to answer does not answer 200,
// and that one that answers by a flush alone has answered.
func TestNoAnswerIsNoSuccess(t *testing.T) {
	f := testkit.Must(New(Config{Replica: "r", Engine: "http://127.0.0.1:1", Edges: []policies.Tokens{0}}))
	for want, handler := range map[int]http.HandlerFunc{
		http.StatusInternalServerError: func(http.ResponseWriter, *http.Request) {},
		http.StatusOK:                  func(w http.ResponseWriter, _ *http.Request) { http.NewResponseController(w).Flush() },
	} {
		rec := httptest.NewRecorder()
		f.withAnswer(time.Minute, handler).ServeHTTP(rec, httptest.NewRequest("GET", "/", nil))
		if rec.Code != want || (rec.Body.Len() == 0) != (want == http.StatusOK) {
			t.Errorf("answered %d %s, want %d", rec.Code, rec.Body, want)
		}
	}
}

// TestAttackAddresses checks that clients do not learn the addresses of engines from errors.
func TestAttackAddresses(t *testing.T) {
	at := net.TCPAddrFromAddrPort(netip.MustParseAddrPort("10.1.2.3:8000"))
	err := fmt.Errorf("read the answer: %w", &net.OpError{Op: "read", Net: "tcp", Source: at, Addr: at, Err: syscall.ECONNRESET})
	if body := string(engineLostProblem(err).Body()); strings.Contains(body, "10.1.2.3") || !strings.Contains(body, errConnectionLost.Error()) {
		t.Errorf("the client gets %s", body)
	}
}

// TestAttackEarlyAnswers checks every answer that a front end gives before a request's
// body has arrived.
func TestAttackEarlyAnswers(t *testing.T) {
	serve := func(ready bool, bodyTimeout time.Duration) (address string) {
		srv := testkit.Must(New(Config{Replica: "r0", Engine: "http://127.0.0.1:1", Edges: policies.BucketEdges(1<<16, 4), MaxBody: 1 << 20, BodyTimeout: bodyTimeout}))
		srv.setReady(ready)
		l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
		s := &http.Server{Handler: srv.Handler(), Protocols: new(http.Protocols), ErrorLog: discardLog}
		s.Protocols.SetHTTP1(true)
		s.Protocols.SetUnencryptedHTTP2(true)
		done := make(chan struct{})
		go func() { defer close(done); s.Serve(l) }()
		t.Cleanup(func() { s.Close(); <-done })
		return l.Addr().String()
	}
	servertest.TestEarlyAnswers(t, serve(false, time.Minute),
		servertest.EarlyAnswer{Name: "engine away", Path: "/v1/completions", Status: 503})
	servertest.TestEarlyAnswers(t, serve(true, time.Minute),
		servertest.EarlyAnswer{Name: "path not served", Path: "/nothing/here", Status: 404},
		servertest.EarlyAnswer{Name: "too large", Path: "/v1/completions", Status: 413, Size: 1<<20 + 1, KnownSize: true},
		servertest.EarlyAnswer{Name: "too large", Path: "/v1/completions", Status: 413, Send: 1<<20 + 1, UnknownSize: true},
	)
	servertest.TestEarlyAnswers(t, serve(true, 100*time.Millisecond),
		servertest.EarlyAnswer{Name: "body too slow", Path: "/v1/completions", Status: 408, Send: 100},
	)
}

// recorder is a ResponseWriter without deadlines or flushing.
type recorder struct {
	header http.Header
	status int
	body   strings.Builder
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(status int) { r.status = status }

func (r *recorder) Write(b []byte) (int, error) { return r.body.Write(b) }

// TestQuietStream checks that an answer may be quiet for longer than
// WriteTimeout, on both versions of HTTP.
func TestQuietStream(t *testing.T) {
	const timeout, pieces = 10 * time.Second, 3
	for _, major := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			f := &Server{cfg: Config{WriteTimeout: timeout}}
			d, lis := newListeners(f), listen()
			s := d.serve(t.Context(), lis, &d.fromClients, f.withAnswer(timeout, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				for range pieces {
					io.WriteString(w, "x")
					http.NewResponseController(w).Flush()
					time.Sleep(5 * timeout)
				}
			})))
			transport := memory.transport(t, major)
			resp := testkit.Must((&http.Client{Transport: transport}).Get("http://" + lis.Addr().String()))
			b, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || len(b) != pieces || resp.ProtoMajor != major {
				t.Errorf("HTTP/%d: %v after %q", resp.ProtoMajor, err, b)
			}
			transport.CloseIdleConnections()
			synctest.Wait()
			s.Close()
			d.wg.Wait()
		})
	}
}

// TestSlowReaders checks that the answer to a client that reads nothing is cut,
// for every kind of answer and protocol.
func TestSlowReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer within(t, 5*time.Second)()
		large := strings.Repeat("a", 16<<20)
		event := `data: {"id":"x","choices":[{"index":0,"text":"` + large[:1<<16] + `","token_ids":[1]}]}` + "\n\n"
		for _, test := range []struct{ name, path, body string }{
			{"events", "/v1/completions", `{"prompt":"x","stream":true}`},
			{"relayed events", "/v1/completions", `{"prompt":"x","n":2}`},
			{"relayed", "/v1/completions", `{"prompt":"x","n":3}`},
			{"passed", "/v1/embeddings", `{}`},
		} {
			e := newEngine(t)
			say := func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(test.name, "events") {
					w.Header().Set("Content-Type", "text/event-stream")
					for r.Context().Err() == nil {
						if _, err := io.WriteString(w, event); err != nil {
							return
						}
					}
					return
				}
				io.WriteString(w, large)
			}
			e.set(nil, say)
			e.pass(say)
			f := startServer(t, e.URL, func(c *Config) { c.WriteTimeout = 40 * time.Millisecond })
			for name, c := range map[string]*http.Client{"HTTP/1.1": f.client, "HTTP/2": {Transport: memory.transport(t, 2)}} {
				resp := testkit.Must(c.Post("http://"+f.url+test.path, "application/json", strings.NewReader(test.body)))
				waitFor(t, f.inFlight.isIdle)
				n, err := io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if err == nil {
					t.Errorf("%s, %s: the answer is whole after %d bytes", test.name, name, n)
				}
			}
		}
	})
}

// stuckWriter blocks until its deadline.
type stuckWriter struct {
	recorder
	cut    chan struct{}
	stream *Stream
	t      *testing.T
}

func (w *stuckWriter) Write([]byte) (int, error) {
	w.stream.Request() // deadlocks if the stream is locked
	<-w.cut
	return 0, context.DeadlineExceeded
}

func (w *stuckWriter) FlushError() error { return nil }

func (w *stuckWriter) SetWriteDeadline(at time.Time) error {
	if time.Until(at) > 0 {
		w.t.Error("a deadline that is still to come resets HTTP/2 streams that are quiet")
	}
	close(w.cut)
	return nil
}

func TestWriteDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &stuckWriter{recorder: recorder{header: http.Header{}}, cut: make(chan struct{}), stream: newTestStream(t.Context(), nil, func() {}), t: t}
		g := newDeadlineWriter(w, time.Minute)
		time.Sleep(time.Hour) // quiet
		begun := time.Now()
		if _, err := g.Write([]byte("x")); err == nil {
			t.Error("a write succeeds that is never read")
		}
		if took := time.Since(begun); took < time.Minute || took > 90*time.Second {
			t.Errorf("the client is given up after %v", took)
		}
		g.end(&http.Request{ProtoMajor: 2})
	})
}

// TestAnswerWriterDoesNotLockStream checks that a client that reads one whole
// answer slowly does not block queries about its stream.
func TestAnswerWriterDoesNotLockStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &stuckWriter{recorder: recorder{header: http.Header{}}, cut: make(chan struct{}), t: t}
		g := newDeadlineWriter(w, time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		leg := readLeg(io.NopCloser(strings.NewReader("data: {\"error\":{}}\n\ndata: [DONE]\n\n")), &call{cancel: cancel}, nil, time.Hour)
		w.stream = newTestStream(ctx, &answerWriter{w: g, template: &answerTemplate{}, header: http.Header{}}, cancel)
		first, _ := leg.next()
		if err := w.stream.pump(opened(leg, first)); err != nil {
			t.Error(err)
		}
		<-w.cut
		g.end(&http.Request{ProtoMajor: 2})
	})
}
