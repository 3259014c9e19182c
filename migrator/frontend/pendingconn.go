package frontend

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

// lazyListener accepts connections on which the first request may take its time:
// clients and migrators dial ahead. http.Server counts ReadHeaderTimeout from the
// moment of acceptance. Left to itself it closes such a connection while its
// client is about to use it, or, when the time is up between the 14 bytes in which
// it looks for HTTP/2 and the rest, takes "POST /v1/compl" for the whole of a
// request line and answers 400.
//
// The embedded proxy's listeners have the same, for the same reason. Connections
// with TLS are left as they are: http.Server must know them, does not look for
// HTTP/2 in their first bytes, and only migrators, who try again, come by them.
type lazyListener struct {
	net.Listener
	idle time.Duration // for the first byte; 0 = no limit
}

// Accept implements net.Listener.
func (p lazyListener) Accept() (net.Conn, error) {
	c, err := p.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if _, secure := c.(*tls.Conn); secure {
		return c, nil
	}
	f := &pendingConn{Conn: c, idle: p.idle}
	_ = f.awaitFirstByte() // one that is closed already is found out when it is read
	return f, nil
}

// pendingConn is a connection that may not have brought a request yet. Until one was
// read, a deadline for reading counts from the next byte on, and that byte has as
// long as any idle connection; afterwards deadlines are what they say.
type pendingConn struct {
	net.Conn
	idle        time.Duration
	deferred    atomic.Int64 // the time.Duration of a deadline that has not begun; 0 = none
	requestRead atomic.Bool  // a request was read
}

// awaitFirstByte waits for the first byte.
func (c *pendingConn) awaitFirstByte() error {
	if c.idle > 0 {
		return c.Conn.SetReadDeadline(time.Now().Add(c.idle))
	}
	return c.Conn.SetReadDeadline(time.Time{})
}

// SetReadDeadline implements net.Conn.
func (c *pendingConn) SetReadDeadline(t time.Time) error {
	if c.requestRead.Load() || t.IsZero() {
		c.deferred.Store(0)
		return c.Conn.SetReadDeadline(t)
	}
	c.deferred.Store(int64(max(time.Until(t), 1)))
	return c.awaitFirstByte()
}

// Read implements net.Conn. A head that does not arrive in time closes the
// connection, so that nothing is answered to half a line.
func (c *pendingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	switch {
	case n > 0 && c.deferred.Load() > 0:
		// This fails where the connection is closed.
		_ = c.Conn.SetReadDeadline(time.Now().Add(time.Duration(c.deferred.Swap(0))))
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

// markActive is an http.Server's ConnState: it hears of the first request.
func markActive(c net.Conn, s http.ConnState) {
	if f, ok := c.(*pendingConn); ok && s == http.StateActive {
		f.requestRead.Store(true)
	}
}
