// Package servertest checks that an HTTP server keeps the invariants of package
// httpserver. The tests of a server call TestEarlyAnswers with the ways in which it
// answers before it has read the request's body; TestEarlyAnswersOf checks a handler
// without sockets.
package servertest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// EarlyAnswer is a POST request that a server answers without the end of its body.
type EarlyAnswer struct {
	Name   string
	Path   string
	Host   string // "" means "test"
	Status int    // of the answer
	Size   int64  // the body's; 0 means 64 KiB
	Send   int64  // bytes that the server must get before it answers
	// UnknownSize says that the server answers so only a body whose size it is not given.
	UnknownSize bool
	// KnownSize says that it answers so only a body whose size it is given.
	KnownSize bool
}

// answerTimeout is how long an answer may take. It does not depend on the body, which
// never ends.
const answerTimeout = time.Minute

// smuggled is what an attacker sends in a body to have it served as a request.
const smuggled = "GET /smuggled HTTP/1.1\r\nHost: test\r\n\r\n"

// dial connects to a server.
type dial func(context.Context) (net.Conn, error)

// TestEarlyAnswers checks each early answer of the server at address over HTTP/1.1 and
// over HTTP/2 without TLS.
func TestEarlyAnswers(t *testing.T, address string, cases ...EarlyAnswer) {
	var dialer net.Dialer
	forEach(t, cases, func(t *testing.T, test func(*testing.T, dial)) {
		t.Parallel()
		test(t, func(ctx context.Context) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", address) })
	})
}

// TestEarlyAnswersOf checks each early answer of a handler in the virtual time of
// testing/synctest, so that an answer that does not come costs no time.
func TestEarlyAnswersOf(t *testing.T, h http.Handler, cases ...EarlyAnswer) {
	forEach(t, cases, func(t *testing.T, test func(*testing.T, dial)) {
		synctest.Test(t, func(t *testing.T) {
			l := testkit.NewPipeListener(netip.AddrPort{})
			s := &http.Server{Handler: h, Protocols: new(http.Protocols)}
			s.Protocols.SetHTTP1(true)
			s.Protocols.SetUnencryptedHTTP2(true)
			go s.Serve(l)
			defer s.Close()
			test(t, func(ctx context.Context) (net.Conn, error) {
				c, err := l.Dial(ctx)
				if err != nil {
					return nil, err
				}
				return buffer(c), nil
			})
		})
	})
}

// forEach calls run with each test of each case.
func forEach(t *testing.T, cases []EarlyAnswer, run func(*testing.T, func(*testing.T, dial))) {
	for _, c := range cases {
		if c.Host == "" {
			c.Host = "test"
		}
		if c.Size == 0 {
			c.Size = 64 << 10
		}
		runNamed := func(name string, test func(*testing.T, dial)) {
			t.Run(c.Name+"/"+name, func(t *testing.T) { run(t, test) })
		}
		if !c.UnknownSize {
			runNamed("stalled body", func(t *testing.T, d dial) { c.testStalled(t, d, false) })
		}
		if !c.UnknownSize && c.Status != http.StatusRequestTimeout {
			runNamed("whole body first", c.testWholeFirst)
		}
		if !c.KnownSize {
			runNamed("stalled chunked body", func(t *testing.T, d dial) { c.testStalled(t, d, true) })
		}
		runNamed("HTTP2", c.testHTTP2)
	}
}

// connect connects to the server until the test ends.
func (d dial) connect(t *testing.T) net.Conn {
	t.Helper()
	conn, err := d(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func (c EarlyAnswer) head(length string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n%s\r\n\r\n", c.Path, c.Host, length)
}

// testStalled sends a part of the body. The answer must come, must announce that the
// connection ends, and what is sent afterwards must not be served.
func (c EarlyAnswer) testStalled(t *testing.T, d dial, chunked bool) {
	conn := d.connect(t)
	part := strings.Repeat(" ", int(c.Send))
	rest := strings.Repeat(smuggled, 3)
	if chunked {
		fmt.Fprint(conn, c.head("Transfer-Encoding: chunked"))
		if part != "" {
			fmt.Fprintf(conn, "%x\r\n%s\r\n", len(part), part)
		}
		rest = fmt.Sprintf("%x\r\n%s", 2*len(rest), rest)
	} else {
		fmt.Fprint(conn, c.head(fmt.Sprintf("Content-Length: %d", c.Size)), part)
	}
	r := bufio.NewReader(conn)
	c.read(t, r)
	fmt.Fprint(conn, rest) // fails if the server has closed the connection, as it may
	if c, ok := conn.(*net.TCPConn); ok {
		c.CloseWrite() // so that the server need not wait for more
	}
	more, err := io.ReadAll(r)
	if len(more) > 0 {
		t.Errorf("the rest of the body was served as a request: %.200q", more)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the server leaves the connection of an unread body open")
	}
}

// read reads the answer and checks it.
func (c EarlyAnswer) read(t *testing.T, r *bufio.Reader) {
	t.Helper()
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatalf("no answer while the body is unfinished: %v", err)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != c.Status || len(text) == 0 && c.Status != http.StatusOK {
		t.Errorf("got %s, %q, %v; want %d", resp.Status, text, err, c.Status)
	}
	if !resp.Close {
		t.Error("the answer does not say Connection: close, although the body was not read")
	}
}

// testWholeFirst sends the whole body before it reads, as simple clients do.
func (c EarlyAnswer) testWholeFirst(t *testing.T, d dial) {
	conn := d.connect(t)
	fmt.Fprint(conn, c.head(fmt.Sprintf("Content-Length: %d", c.Size)))
	if n, err := io.CopyN(conn, spaces{}, c.Size); err != nil {
		t.Fatalf("the server took %d of %d bytes of a body that it refuses, so the client does not see why: %v", n, c.Size, err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("the answer was lost: %v", err)
	}
	if resp.StatusCode != c.Status {
		t.Errorf("got %s, want %d", resp.Status, c.Status)
	}
}

// spaces is an endless body.
type spaces struct{}

func (spaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// testHTTP2 sends a part of the body. The answer must come, and the connection must
// serve further requests.
func (c EarlyAnswer) testHTTP2(t *testing.T, d dial) {
	dials := 0
	transport := &http.Transport{Protocols: new(http.Protocols), DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		dials++
		return d(ctx)
	}}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), answerTimeout)
		defer cancel()
		stalled, unfinished := io.Pipe()
		defer unfinished.Close()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.Host+c.Path, struct {
			io.Reader
			io.Closer // ends a Read, for which the transport waits
		}{io.MultiReader(io.LimitReader(spaces{}, c.Send), stalled), stalled})
		if err != nil {
			t.Fatal(err)
		}
		if r.ContentLength = c.Size; c.UnknownSize {
			r.ContentLength = -1
		}
		resp, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatalf("no answer while the body is unfinished: %v", err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != c.Status {
			t.Errorf("got %s, %q, %v; want %d", resp.Status, text, err, c.Status)
		}
	}
	if dials != 1 {
		t.Errorf("an early answer cost the connection: %d dials for two requests", dials)
	}
}
