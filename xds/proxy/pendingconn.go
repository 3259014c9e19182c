package proxy

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

// lazyDeadlineListener accepts connections whose first request may be late, as Envoy
// does. Clients dial ahead: a pool that opens a connection for a request and then
// sends the request on another one keeps the new connection for later.
//
// http.Server counts ReadHeaderTimeout from Accept. By itself it closes such a
// connection while its client is about to use it. Worse, it looks for HTTP/2 in the
// first 14 bytes; if the time expires between those and the rest, it takes
// "POST /v1/compl" for a whole request line and answers 400.
type lazyDeadlineListener struct {
	net.Listener
	idle time.Duration // for the first byte; 0 means no limit
}

// Accept implements net.Listener.
func (p lazyDeadlineListener) Accept() (net.Conn, error) {
	c, err := p.Listener.Accept()
	if err != nil {
		return nil, err
	}
	f := &pendingConn{Conn: c, firstByteTimeout: p.idle}
	_ = f.awaitFirstByte() // a closed connection fails at the next Read
	return f, nil
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

// markRequestRead is an http.Server's ConnState hook: it marks the connection at its
// first request.
func markRequestRead(c net.Conn, s http.ConnState) {
	if s != http.StateActive {
		return
	}
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	if f, ok := c.(*pendingConn); ok {
		f.requestRead.Store(true)
	}
}
