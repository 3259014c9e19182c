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

// lazyListener accepts connections whose first request may come late: clients and
// migrators dial ahead. http.Server counts ReadHeaderTimeout from the moment of
// acceptance. Without this it closes such a connection while its client is about
// to use it; or, if the time is up between the 14 bytes in which it looks for
// HTTP/2 and the rest, it takes "POST /v1/compl" for the whole request line and
// answers 400.
//
// The listeners of the embedded proxy do the same for the same reason. TLS
// connections are passed on as they are: http.Server must recognize them and does
// not look for HTTP/2 in their first bytes, and only migrators use them, which
// retry.
type lazyListener struct {
	net.Listener
	idle time.Duration // for the first byte; 0 for no limit
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
	_ = f.awaitFirstByte() // if it is closed already, Read fails
	return f, nil
}

// pendingConn is a connection that may still wait for the first byte of its first
// request. Until a request was read, a read deadline counts from the next byte
// on, and that byte may take as long as on any idle connection. Afterwards read
// deadlines apply as they are.
type pendingConn struct {
	net.Conn
	idle        time.Duration
	deferred    atomic.Int64 // the time.Duration of a deadline that does not count yet; 0 for none
	requestRead atomic.Bool  // a request was read
}

// awaitFirstByte sets the deadline of the first byte.
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

// Read implements net.Conn. If the rest of a request line does not arrive in
// time, Read closes the connection, so that the server does not answer half a
// line.
func (c *pendingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	switch {
	case n > 0 && c.deferred.Load() > 0:
		// This fails if the connection is closed.
		_ = c.Conn.SetReadDeadline(time.Now().Add(time.Duration(c.deferred.Swap(0))))
	case errors.Is(err, os.ErrDeadlineExceeded) && !c.requestRead.Load():
		c.Conn.Close()
	}
	return n, err
}

// CloseWrite lets http.Server finish an answer before it closes.
func (c *pendingConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// markActive is an http.Server's ConnState: it is called when the first request
// was read.
func markActive(c net.Conn, s http.ConnState) {
	if f, ok := c.(*pendingConn); ok && s == http.StateActive {
		f.requestRead.Store(true)
	}
}
