package frontend

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

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
		for name, send := range map[string]func(t *testing.T, f *testServer) *http.Request{
			"stream": func(t *testing.T, f *testServer) *http.Request {
				return jsonRequest(f.url, "/v1/completions", `{"prompt":"x","stream":true}`)
			},
			"plain": func(t *testing.T, f *testServer) *http.Request {
				return jsonRequest(f.url, "/v1/completions", `{"prompt":"x"}`)
			},
			"passed": func(t *testing.T, f *testServer) *http.Request {
				return jsonRequest(f.url, "/tokenize", `{"prompt":"x"}`)
			},
			"unfinished body": func(t *testing.T, f *testServer) *http.Request {
				return unfinished(t, "POST", "http://"+f.url+"/v1/completions", "{")
			},
			"peer's leg": func(t *testing.T, f *testServer) *http.Request {
				r := jsonRequest(f.peer, "/v1/completions", `{"prompt":"x","stream":true}`)
				r.Header.Set(ForwardHeader, "r1")
				return r
			},
		} {
			runInBubble(t, fmt.Sprintf("%s HTTP/%d", name, major), func(t *testing.T) {
				defer within(t, 5*time.Second)()
				e := newEngine(t)
				wait := func(w http.ResponseWriter, r *http.Request) {
					io.Copy(io.Discard, r.Body)
					<-r.Context().Done()
				}
				e.set(nil, wait)
				e.passthrough.Store(&wait)
				f := startServer(t, e.URL, func(c *Config) { c.DrainTimeout = 20 * time.Millisecond })
				c := &http.Client{Transport: memory.transport(t, major)}
				answered, request := make(chan error, 1), send(t, f)
				go func() {
					resp, err := c.Do(request)
					if err == nil {
						resp.Body.Close()
						if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get(length.RefusedHeader) == "" {
							err = fmt.Errorf("answered %s %v", resp.Status, resp.Header)
						}
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
		post(t, f.client, f.url, "/v1/completions", body) // from which the shape of answers is learnt
		hold := e.blockAt(2)
		defer close(hold)
		answered := make(chan *http.Response, 1)
		go func() {
			resp, _ := tryPost(t, f.client, f.url, "/v1/completions", body)
			answered <- resp
		}()
		waitFor(t, func() bool { return f.Status().Load.Running == 1 })
		f.Drain()
		if resp := <-answered; resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get(length.RefusedHeader) == "" {
			t.Errorf("answered %s %v", resp.Status, resp.Header)
		}
	})
}

func jsonRequest(address, path, body string) *http.Request {
	r, _ := http.NewRequest("POST", "http://"+address+path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	return r
}

// TestAttackHalfClose checks, on real sockets, that a client that ends its side of the
// connection before the answer gets none, instead of an empty one that looks good; and of
// a stream that was cut no regular end.
func TestAttackHalfClose(t *testing.T) {
	e := newEngine(t)
	hold := make(chan struct{})
	defer close(hold)
	wait := func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		select {
		case <-r.Context().Done():
		case <-hold:
		}
	}
	e.passthrough.Store(&wait)
	clients, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
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
				wait(nil, r)
			}
		}, nil)
		conn, err := net.Dial("tcp", clients.Addr().String())
		testkit.NoError(t, err)
		_, err = io.WriteString(conn, test.request)
		testkit.NoError(t, err)
		var got []byte
		if test.begins {
			got = make([]byte, 20)
			_, err = io.ReadFull(conn, got)
			testkit.NoError(t, err)
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
	f, err := New(Config{Replica: "r", Engine: "http://127.0.0.1:1", Edges: []policies.Tokens{0}})
	testkit.NoError(t, err)
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
