package httpserver

import (
	"bytes"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Connections are the connections of one http.Server with its clients. The server serves Listener, and its
// ConnState is Track; its IdleTimeout should equal Idle.
//
// The first request of a connection may come late, as with Envoy. Clients dial ahead: a pool that opens a
// connection for a request and then sends the request on another one keeps the new connection for later.
// http.Server counts ReadHeaderTimeout from Accept. By itself it closes such a connection while its client is
// about to use it. Worse, it looks for HTTP/2 in the first 14 bytes; if the time expires between those and the
// rest, it takes "POST /v1/compl" for a whole request line and answers 400.
type Connections struct {
	// Idle is how long a connection may wait for the first byte of its first request; 0 means no limit.
	Idle time.Duration

	mu    sync.Mutex
	http1 map[net.Conn]struct{} // open, and not known to speak HTTP/2
}

// HTTP1 returns how many open connections may bring HTTP/1 requests. Closing one of them loses the request
// that its client sends at the same moment, and clients may not send most requests of this API twice by
// themselves: a server that another process replaces waits until its clients have closed or used them all. Over
// HTTP/2 a GOAWAY says which requests were not begun.
func (s *Connections) HTTP1() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.http1)
}

// Track is the http.Server.ConnState of the server.
func (s *Connections) Track(c net.Conn, state http.ConnState) {
	p := pendingOf(c)
	secure, _ := c.(*tls.Conn)
	switch state {
	case http.StateNew:
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.http1 == nil {
			s.http1 = make(map[net.Conn]struct{})
		}
		s.http1[c] = struct{}{}
	case http.StateActive:
		if p != nil {
			p.requestRead.Store(true)
		}
		if secure != nil && secure.ConnectionState().NegotiatedProtocol == "h2" || p != nil && p.http2.Load() {
			s.forget(c)
		}
	case http.StateClosed, http.StateHijacked:
		s.forget(c)
	}
}

func (s *Connections) forget(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.http1, c)
}

// Listener returns the listener to serve in place of l. Connections of a listener that has done TLS already stay
// as they are: http.Server must recognize them, and does not look for HTTP/2 in their first bytes.
func (s *Connections) Listener(l net.Listener) net.Listener { return pendingListener{l, s.Idle} }

type pendingListener struct {
	net.Listener
	idle time.Duration
}

// Accept implements net.Listener.
func (l pendingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if _, secure := c.(*tls.Conn); secure {
		return c, nil
	}
	p := &pendingConn{Conn: c, firstByteTimeout: l.idle}
	_ = p.awaitFirstByte() // a closed connection fails at the next Read
	return p, nil
}

// pendingConn is a connection that awaits the first byte of its first request. Until a
// request was read, a read deadline starts with the next byte, and that byte may take as
// long as on any idle connection; afterwards deadlines apply as usual. The server sets
// one deadline for the headers, and before that one for the TLS handshake.
type pendingConn struct {
	net.Conn
	firstByteTimeout time.Duration
	headTimeout      atomic.Int64 // the time.Duration of a deadline that has not started; 0 = none
	alsoWrite        atomic.Bool  // that deadline applies to writes, too
	requestRead      atomic.Bool  // a request was read
	begun            atomic.Bool  // a byte was read
	http2            atomic.Bool  // the first bytes were those of HTTP/2
}

// pendingOf returns the connection below c; nil if a listener with TLS has accepted it.
func pendingOf(c net.Conn) *pendingConn {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	p, _ := c.(*pendingConn)
	return p
}

// awaitFirstByte sets the deadline for the first byte.
func (c *pendingConn) awaitFirstByte() error {
	if c.firstByteTimeout > 0 {
		return c.Conn.SetReadDeadline(time.Now().Add(c.firstByteTimeout))
	}
	return c.Conn.SetReadDeadline(time.Time{})
}

// SetReadDeadline implements net.Conn.
func (c *pendingConn) SetReadDeadline(t time.Time) error {
	if c.requestRead.Load() || t.IsZero() {
		c.headTimeout.Store(0)
		return c.Conn.SetReadDeadline(t)
	}
	c.headTimeout.Store(int64(max(time.Until(t), 1)))
	return c.awaitFirstByte()
}

// SetWriteDeadline implements net.Conn.
func (c *pendingConn) SetWriteDeadline(t time.Time) error {
	later := !t.IsZero() && c.headTimeout.Load() > 0
	if c.alsoWrite.Store(later); later {
		return nil
	}
	return c.Conn.SetWriteDeadline(t)
}

// Read implements net.Conn. If the headers do not arrive in time, it closes the
// connection, so that the server answers nothing to half a line.
func (c *pendingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && !c.begun.Swap(true) {
		c.http2.Store(bytes.HasPrefix(p[:n], []byte("PRI ")))
	}
	switch {
	case n > 0 && c.headTimeout.Load() > 0:
		t := time.Now().Add(time.Duration(c.headTimeout.Swap(0)))
		_ = c.Conn.SetReadDeadline(t) // fails where the connection is closed
		if c.alsoWrite.Swap(false) {
			_ = c.Conn.SetWriteDeadline(t)
		}
	case errors.Is(err, os.ErrDeadlineExceeded) && !c.requestRead.Load():
		c.Conn.Close()
	}
	return n, err
}

// CloseWrite lets http.Server end a response before it closes the connection.
func (c *pendingConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
