package httpserver_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/policies/httpserver"
	"github.com/cascadeinfer/cascade/policies/httpserver/servertest"
)

// serve serves a handler on real sockets, over HTTP/1.1 and h2c, until the test ends.
func serve(t *testing.T, h http.HandlerFunc) (address string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: httpserver.Handler(h), Protocols: new(http.Protocols)}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(l) }()
	t.Cleanup(func() { s.Close(); <-done })
	return l.Addr().String()
}

// TestAttackEarlyAnswers checks handlers that answer at once, that answer in pieces, and
// that leave a goroutine reading the body.
func TestAttackEarlyAnswers(t *testing.T) {
	address := serve(t, func(w http.ResponseWriter, r *http.Request) {
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
		if r.URL.Path != "/flushes" {
			w.WriteHeader(http.StatusNotFound)
		}
		io.WriteString(w, "an answer")
	})
	servertest.TestEarlyAnswers(t, address,
		servertest.EarlyAnswer{Name: "at once", Path: "/", Status: 404},
		servertest.EarlyAnswer{Name: "still reading", Path: "/reads", Status: 404, Send: 10},
		servertest.EarlyAnswer{Name: "body closed", Path: "/closes", Status: 404, Send: 10},
		servertest.EarlyAnswer{Name: "in pieces", Path: "/flushes", Status: 200, Size: 1 << 20},
	)
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
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", path)
		if got, err := io.ReadAll(conn); len(got) > 0 {
			t.Errorf("%s: answered %q, %v", path, got, err)
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
		here, there := net.Pipe()
		s := &http.Server{Handler: httpserver.Handler(http.NotFoundHandler())}
		go s.Serve(&oneConn{conn: there, closed: make(chan struct{})})
		defer s.Close()
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

// oneConn is a listener of one connection.
type oneConn struct {
	conn   net.Conn
	closed chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	if c := l.conn; c != nil {
		l.conn = nil
		return c, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}
func (l *oneConn) Close() error   { close(l.closed); return nil }
func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }

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
		if err != nil {
			t.Fatal(err)
		}
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
