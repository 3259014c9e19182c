package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

var h2c = link{connectTimeout: 5 * time.Second}

// serve starts an h2c and HTTP/1.1 server and returns its address.
func serve(t testing.TB, streams int, h http.HandlerFunc) (string, *http.Server) {
	t.Helper()
	return serveConns(t, streams, h, nil)
}

// serveConns is like serve, and reports the states of the connections to state.
func serveConns(t testing.TB, streams int, h http.HandlerFunc, state func(net.Conn, http.ConnState)) (string,
	*http.Server) {
	t.Helper()
	s := &http.Server{Handler: h, ConnState: state, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: streams}}
	address, _ := testkit.ServeHTTP(t, s, "")
	return address, s
}

func post(t testing.TB, ctx context.Context, address, body string) *http.Request {
	t.Helper()
	return testkit.Must(http.NewRequestWithContext(ctx, "POST", "http://"+address+"/", io.NopCloser(strings.NewReader(body))))
}

func kindOf(t *testing.T, err error) failureKind {
	t.Helper()
	var e *failure
	if !errors.As(err, &e) {
		t.Fatalf("error %v is no *failure", err)
	}
	return e.kind
}

func pools(t testing.TB) *replicas {
	p := newReplicas(nil)
	t.Cleanup(p.close)
	return p
}

// TestKinds checks which requests may be sent again, and which may not.
func TestKinds(t *testing.T) {
	const unused = "127.0.0.1:1"
	silent := testkit.Must(net.Listen("tcp", "127.0.0.1:0")) // accepts connections, never responds
	defer silent.Close()
	for _, c := range []struct {
		name    string
		address string
		want    failureKind
	}{
		{"no listener", unused, notConnected},
		{"REFUSED_STREAM", answerHeads(t, func(f *http2.Framer, id uint32) { f.WriteRSTStream(id, http2.ErrCodeRefusedStream) }), refusedStream},
		{"GOAWAY before the stream", answerHeads(t, func(f *http2.Framer, _ uint32) { f.WriteGoAway(0, http2.ErrCodeNo, nil) }), refusedStream},
		{"another reset", answerHeads(t, func(f *http2.Framer, id uint32) { f.WriteRSTStream(id, http2.ErrCodeInternal) }), reset},
		{"hangs up after the request", answerHeads(t, func(f *http2.Framer, _ uint32) { breakFraming(f) }), reset},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := pools(t).get(c.address, h2c).send(post(t, t.Context(), c.address, "body"))
			if k := kindOf(t, err); k != c.want {
				t.Errorf("%v is %v, want %v", err, k, c.want)
			}
		})
	}
}

// breakFraming sends an invalid frame, which makes the peer's reader fail.
func breakFraming(f *http2.Framer) { f.WriteRawFrame(http2.FrameSettings, 0, 1, nil) }

// TestGracefulPeer checks a server that shuts down: it finishes its streams and accepts
// no new ones. The pool does not move refused streams elsewhere; they are safe to
// retry.
func TestGracefulPeer(t *testing.T) {
	release := make(chan struct{})
	// One connection has room for all streams: a second one, made while the server
	// closes its listener, would be reset, and it would be unknown how much of it was
	// read.
	address, server := serve(t, 1<<20, func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-release
		io.WriteString(w, "done")
	})
	pool := pools(t).get(address, h2c)
	resp, _, err := pool.send(post(t, t.Context(), address, "x"))
	testkit.NoError(t, err)
	down := make(chan error)
	go func() { down <- server.Shutdown(context.Background()) }()
	for {
		next, _, err := pool.send(post(t, t.Context(), address, "x"))
		if err != nil {
			if k := kindOf(t, err); k == reset {
				t.Fatalf("a stream refused by a graceful shutdown is %v: %v", k, err)
			}
			break
		}
		// This stream was accepted before the shutdown began.
		defer next.Body.Close()
	}
	close(release)
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "done" {
		t.Errorf("the running stream got %q, %v", b, err)
	}
	resp.Body.Close()
	if err := <-down; err != nil {
		t.Error(err)
	}
}

// TestManyStreams checks that one connection is used where it can hold all streams, and
// more where it cannot.
func TestManyStreams(t *testing.T) {
	for _, c := range []struct{ server, client, streams, conns int }{
		{20000, 0, 1000, 1},
		{100, 0, 250, 3},
		{20000, 100, 250, 3},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			release := make(chan struct{})
			address, _ := serve(t, c.server, func(w http.ResponseWriter, r *http.Request) {
				w.(http.Flusher).Flush()
				<-release
			})
			s := h2c
			s.maxStreams = c.client
			pool := pools(t).get(address, s)
			// The first request shows the peer's limit to the pool.
			warm, _, err := pool.send(post(t, t.Context(), address, ""))
			testkit.NoError(t, err)
			var wg sync.WaitGroup
			responses := make(chan *http.Response, c.streams)
			for range c.streams - 1 {
				request := post(t, t.Context(), address, "")
				wg.Go(func() {
					resp, _, err := pool.send(request)
					if err != nil {
						t.Error(err)
						return
					}
					responses <- resp
				})
			}
			wg.Wait()
			if n := pool.count(); n != c.conns {
				t.Errorf("%d streams are on %d connections, want %d", c.streams, n, c.conns)
			}
			close(release)
			close(responses)
			for resp := range responses {
				resp.Body.Close()
			}
			warm.Body.Close()
		})
	}
}

// TestRetiredReplica checks that the stream of a removed endpoint continues.
func TestRetiredReplica(t *testing.T) {
	release := make(chan struct{})
	closed := make(chan struct{})
	address, _ := serveConns(t, 0, func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-release
		io.WriteString(w, "done")
	}, func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			close(closed)
		}
	})
	all := pools(t)
	resp, _, err := all.get(address, h2c).send(post(t, t.Context(), address, "x"))
	testkit.NoError(t, err)
	all.failed.add("10.0.0.9:1", time.Now()) // a request tried it after it had left
	all.keep(nil)
	if all.failed.avoided(time.Now()) != nil {
		t.Error("the failure of a replica that has left is remembered")
	}
	close(release)
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "done" {
		t.Errorf("got %q, %v", b, err)
	}
	resp.Body.Close()
	<-closed
}

func TestCancelledAttempt(t *testing.T) {
	address, _ := serve(t, 0, func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	cause := errors.New("the client left")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(10*time.Millisecond, func() { cancel(cause) })
	if _, _, err := pools(t).get(address, h2c).send(post(t, ctx, address, "x")); !errors.Is(err, cause) {
		t.Errorf("got %v, want the cause", err)
	}
}

func TestClosedReplicas(t *testing.T) {
	p := newReplicas(nil)
	pool := p.get("127.0.0.1:1", h2c)
	p.close()
	if _, _, err := pool.send(post(t, t.Context(), "127.0.0.1:1", "")); err == nil {
		t.Error("a closed pool made a connection")
	}
}

// TestPassedOver checks for how long a replica that gives no response is passed over: twice as long
// each time in succession, and not at all after a response.
func TestPassedOver(t *testing.T) {
	var f failedReplicas
	now := time.Unix(1, 0)
	passed := func() bool { avoid := f.avoided(now); return avoid != nil && avoid("a") }
	for _, want := range []time.Duration{passOver, 2 * passOver, 4 * passOver, 8 * passOver, 16 * passOver,
		maxPassOver, maxPassOver} {
		if !f.add("a", now) || f.add("a", now.Add(want-1)) {
			t.Errorf("a failure while it is passed over counts")
		}
		if now = now.Add(want - 1); !passed() {
			t.Errorf("it is tried before %v", want)
		}
		if now = now.Add(1); passed() {
			t.Errorf("it is not tried after %v", want)
		}
	}
	f.add("b", now)
	f.clear("a")
	if f.clear("c"); passed() || !f.avoided(now)("b") {
		t.Error("a response clears the failures of its replica alone")
	}
	if f.add("a", now); f.avoided(now.Add(passOver))("a") {
		t.Error("the time did not begin anew")
	}
	f.keep(map[string]bool{"b": true})
	if all := *f.all.Load(); len(all) != 1 || f.avoided(now) == nil {
		t.Errorf("%v are kept, want b alone", all)
	}
}
