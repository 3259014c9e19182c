package httpserver_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/httpserver"
	"github.com/cascadeinfer/cascade/internal/httpserver/servertest"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// serve serves a handler on real sockets, over HTTP/1.1 and h2c, until the test ends.
func serve(t *testing.T, h http.HandlerFunc) (address string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	s := &http.Server{Handler: httpserver.Handler(h), Protocols: new(http.Protocols)}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(l) }()
	t.Cleanup(func() { s.Close(); <-done })
	return l.Addr().String()
}

// earlyAnswers answers before the end of the body: at once, in pieces, or while a goroutine
// reads the body.
func earlyAnswers(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/reads":
		started := make(chan struct{})
		go func() {
			r.Body.Read(make([]byte, 1))
			close(started)
			io.Copy(io.Discard, r.Body)
		}()
		<-started
	case "/closes":
		r.Body.Close()
	case "/flushes":
		http.NewResponseController(w).Flush()
	}
	switch r.URL.Path {
	case "/flushes":
	case "/ok":
		w.WriteHeader(http.StatusOK)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
	io.WriteString(w, "an answer")
}

var earlyCases = []servertest.EarlyAnswer{
	{Name: "at once", Path: "/", Status: 404},
	{Name: "still reading", Path: "/reads", Status: 404, Send: 10},
	{Name: "body closed", Path: "/closes", Status: 404, Send: 10},
	{Name: "with its status first", Path: "/ok", Status: 200},
	{Name: "in pieces", Path: "/flushes", Status: 200, Size: 1 << 20},
}

// TestEarlyAnswers is TestAttackEarlyAnswers without sockets, but for the goroutine that
// reads: virtual time stands still while Handler waits for its Read.
func TestEarlyAnswers(t *testing.T) {
	withoutReader := slices.DeleteFunc(slices.Clone(earlyCases), func(c servertest.EarlyAnswer) bool { return c.Path == "/reads" })
	servertest.TestEarlyAnswersOf(t, httpserver.Handler(http.HandlerFunc(earlyAnswers)), withoutReader...)
}

// clientBody is a request's body whose Read waits until the server's read deadline has
// passed, as one from a client that sends nothing does.
type clientBody struct {
	*httptest.ResponseRecorder // answers
	deadline                   chan struct{}
	passed                     sync.Once
	reading                    atomic.Bool
	reads                      atomic.Int32
}

func newClientBody() *clientBody {
	return &clientBody{ResponseRecorder: httptest.NewRecorder(), deadline: make(chan struct{})}
}

func (b *clientBody) Read([]byte) (int, error) {
	b.reads.Add(1)
	b.reading.Store(true)
	defer b.reading.Store(false)
	<-b.deadline
	return 0, os.ErrDeadlineExceeded
}

func (b *clientBody) Close() error { return nil }

func (b *clientBody) SetReadDeadline(time.Time) error {
	b.passed.Do(func() { close(b.deadline) })
	return nil
}

// serve serves one request with the body, as net/http calls a handler.
func (b *clientBody) serve(h http.HandlerFunc) (aborted bool) {
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.Body = b
	defer func() { aborted = recover() == http.ErrAbortHandler }()
	httpserver.Handler(h).ServeHTTP(b, r)
	return false
}

// TestCloseBody checks that a body that its handler has closed is not read for it.
func TestCloseBody(t *testing.T) {
	b := newClientBody()
	b.serve(func(w http.ResponseWriter, r *http.Request) {
		r.Body.Close()
		if _, err := r.Body.Read(make([]byte, 1)); !errors.Is(err, http.ErrBodyReadAfterClose) || b.reads.Load() > 0 {
			t.Errorf("read %d times: %v, want %v", b.reads.Load(), err, http.ErrBodyReadAfterClose)
		}
		w.WriteHeader(http.StatusNotFound)
	})
}

// TestEarlyHints checks that a handler that has written only early hints has not answered.
func TestEarlyHints(t *testing.T) {
	if b := newClientBody(); !b.serve(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusEarlyHints) }) {
		t.Error("a request without an answer was not aborted")
	}
}

// TestNoReadAfterHandler checks that after a handler, however it ends, no read of the
// client's body is under way and none begins.
func TestNoReadAfterHandler(t *testing.T) {
	for name, end := range map[string]func(http.ResponseWriter){
		"answers": func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) },
		"returns": func(http.ResponseWriter) {},
		"panics":  func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			body, read := newClientBody(), make(chan struct{})
			var afterHandler io.Reader
			aborted := body.serve(func(w http.ResponseWriter, r *http.Request) {
				afterHandler = r.Body
				go func() {
					defer close(read)
					r.Body.Read(make([]byte, 1))
				}()
				testkit.WaitFor(t, "a read", body.reading.Load)
				end(w)
			})
			if body.reading.Load() {
				t.Error("the handler has ended, and its goroutine still reads the client's body")
			}
			if n := body.reads.Load(); aborted != (name != "answers") || aborted && n > 1 {
				t.Errorf("aborted %v; the body was read %d times, once by the handler", aborted, n)
			}
			testkit.WaitForEvent(t, "the goroutine ends", read)
			if _, err := afterHandler.Read(make([]byte, 1)); !errors.Is(err, http.ErrBodyReadAfterClose) {
				t.Errorf("a read after the handler: %v, want %v", err, http.ErrBodyReadAfterClose)
			}
		})
	}
}

// TestAttackEarlyAnswers checks handlers that answer at once, that answer in pieces, and
// that leave a goroutine reading the body.
func TestAttackEarlyAnswers(t *testing.T) {
	servertest.TestEarlyAnswers(t, serve(t, earlyAnswers), earlyCases...)
}

// TestAttackUnwritten checks that a handler that writes nothing, or panics, leaves its
// client without an answer and without a connection, even while the body stalls.
func TestAttackUnwritten(t *testing.T) {
	for _, path := range []string{"/returns", "/panics"} {
		address := serve(t, func(w http.ResponseWriter, r *http.Request) {
			go io.Copy(io.Discard, r.Body)
			if r.URL.Path == "/panics" {
				panic(http.ErrAbortHandler)
			}
		})
		conn, err := net.Dial("tcp", address)
		testkit.NoError(t, err)
		testkit.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", path)
		if got, err := io.ReadAll(conn); len(got) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: answered %q, %v; want the end of the connection", path, got, err)
		}
		conn.Close()
		transport := &http.Transport{Protocols: new(http.Protocols)}
		transport.Protocols.SetUnencryptedHTTP2(true)
		stalled, unfinished := io.Pipe()
		resp, err := (&http.Client{Transport: transport}).Post("http://"+address+path, "text/plain", stalled)
		if err == nil {
			t.Errorf("%s, HTTP/2: answered %s", path, resp.Status)
			resp.Body.Close()
		}
		unfinished.Close()
		transport.CloseIdleConnections()
	}
}

// TestLinger checks that the rest of a body is read for lingerTime after the answer and
// not longer, and that the connection is then closed.
func TestLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &http.Server{Handler: httpserver.Handler(http.NotFoundHandler())}
		l := testkit.NewPipeListener(netip.AddrPort{})
		go s.Serve(l)
		defer s.Close()
		here := testkit.Must(l.Dial(t.Context()))
		defer here.Close()
		fmt.Fprint(here, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(here), nil)
		if err != nil || resp.StatusCode != http.StatusNotFound {
			t.Fatal(resp, err)
		}
		go io.Copy(io.Discard, here)
		begun := time.Now()
		for err == nil {
			time.Sleep(100 * time.Millisecond)
			_, err = here.Write(bytes.Repeat([]byte("x"), 100))
		}
		if took := time.Since(begun); took < time.Second || took > 2*time.Second {
			t.Errorf("the connection was closed after %v, want 1 s", took)
		}
	})
}

// TestKeepAlive checks that answers after the whole body keep the connection.
func TestKeepAlive(t *testing.T) {
	address := serve(t, func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "%s %d", r.RemoteAddr, n)
	})
	var first string
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for range 3 {
		resp, err := client.Post("http://"+address, "text/plain", strings.NewReader("hello"))
		testkit.NoError(t, err)
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if first == "" {
			first = string(text)
		}
		if err != nil || string(text) != first || !strings.HasSuffix(first, " 5") {
			t.Errorf("%q, %v; want %q", text, err, first)
		}
	}
}
