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

// lazyDeadlineListener accepts connections on which the first request may take its time, as
// Envoy does. Clients dial ahead: a pool that makes a connection for a request
// and then serves it on another one keeps the new one for later.
//
// http.Server counts ReadHeaderTimeout from the moment of acceptance. Left to
// itself it closes such a connection while its client is about to use it. Worse,
// it looks for HTTP/2 in the first 14 bytes; when the time is up between those
// and the rest, it takes "POST /v1/compl" for the whole of a request line, and
// answers 400.
type lazyDeadlineListener struct {
	net.Listener
	idle time.Duration // for the first byte; 0 = no limit
}

// Accept implements net.Listener.
func (p lazyDeadlineListener) Accept() (net.Conn, error) {
	c, err := p.Listener.Accept()
	if err != nil {
		return nil, err
	}
	f := &pendingConn{Conn: c, firstByteTimeout: p.idle}
	_ = f.awaitFirstByte() // one that is closed already is found out when it is read
	return f, nil
}

// pendingConn is a connection that may not have brought a request yet. Until one was
// read, a deadline counts from the next byte on, and that byte has as long as any
// idle connection; afterwards deadlines are what they say. The server gives one
// for the head, and before that one for the handshake of TLS.
type pendingConn struct {
	net.Conn
	firstByteTimeout time.Duration
	headTimeout      atomic.Int64 // the time.Duration of a deadline that has not begun; 0 = none
	alsoWrite        atomic.Bool  // it is one for writing, too
	requestRead      atomic.Bool  // a request was read
}

// awaitFirstByte waits for the first byte.
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

// Read implements net.Conn. A head that does not arrive in time closes the
// connection, so that nothing is answered to half a line.
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

// CloseWrite lets http.Server end an answer before it closes.
func (c *pendingConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// markRequestRead is an http.Server's ConnState: it hears of the first request.
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
