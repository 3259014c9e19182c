package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
)

// connections holds the HTTP/2 connections to one replica. Streams use the first
// connection with a free stream; if there is none, one more connection is made, for all
// waiting requests together.
type connections struct {
	address   string
	link      link
	transport *http.Transport
	dials     sync.WaitGroup

	mu      sync.Mutex
	open    []*http.ClientConn
	dialing *dial // nil when none is under way
	retired bool  // no new requests are expected
	closed  bool  // no new connections are made
}

// dial is a connection being made.
type dial struct {
	done   chan struct{}
	cancel context.CancelFunc
	err    error // set before done is closed
}

var errProxyClosed = errors.New("the proxy is closed")

// maxDials bounds how often one request waits for a new connection: a peer that allows no
// streams would otherwise be dialled for ever.
const maxDials = 8

// reserve returns a connection with a stream reserved for the caller, who must call
// RoundTrip or Release.
func (c *connections) reserve(ctx context.Context) (*http.ClientConn, error) {
	for range maxDials {
		c.mu.Lock()
		if conn := c.roomLocked(); conn != nil {
			c.mu.Unlock()
			return conn, nil
		}
		if c.closed {
			c.mu.Unlock()
			return nil, errProxyClosed
		}
		d := c.dialing
		if d == nil {
			d = c.dialLocked()
		}
		c.mu.Unlock()
		select {
		case <-d.done:
			if d.err != nil {
				return nil, d.err
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return nil, fmt.Errorf("%s allows no streams on %d new connections", c.address, maxDials)
}

// roomLocked reserves a stream on an open connection and drops closed connections.
func (c *connections) roomLocked() *http.ClientConn {
	c.open = slices.DeleteFunc(c.open, func(conn *http.ClientConn) bool { return conn.Err() != nil })
	for _, conn := range c.open {
		if limit := c.link.maxStreams; limit > 0 && conn.InFlight() >= limit {
			continue
		}
		if conn.Reserve() == nil {
			return conn
		}
	}
	return nil
}

// dialLocked starts a connection for all waiting requests, so it outlives the request
// that started it.
func (c *connections) dialLocked() *dial {
	ctx, cancel := context.WithTimeout(context.Background(), c.link.connectTimeout)
	d := &dial{done: make(chan struct{}), cancel: cancel}
	c.dialing = d
	c.dials.Go(func() {
		defer cancel()
		scheme := "http"
		if c.link.secure {
			scheme = "https"
		}
		conn, err := c.transport.NewClientConn(ctx, scheme, c.address)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.dialing = nil
		switch {
		case err != nil:
			d.err = err
		case c.closed:
			conn.Close()
			d.err = errProxyClosed
		default:
			c.open = append(c.open, conn)
			if c.retired {
				conn.SetStateHook(closeIdle)
			}
		}
		close(d.done)
	})
	return d
}

func (c *connections) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, conn := range c.open {
		if conn.Err() == nil {
			n++
		}
	}
	return n
}

// retire closes each connection when its last stream ends.
func (c *connections) retire() {
	c.mu.Lock()
	c.retired = true
	open := slices.Clone(c.open)
	c.mu.Unlock()
	for _, conn := range open {
		conn.SetStateHook(closeIdle)
		closeIdle(conn)
	}
}

func closeIdle(conn *http.ClientConn) {
	if conn.InFlight() == 0 {
		conn.Close()
	}
}

// close closes all connections.
func (c *connections) close() {
	c.mu.Lock()
	c.closed = true
	if c.dialing != nil {
		c.dialing.cancel()
	}
	open := c.open
	c.open = nil
	c.mu.Unlock()
	c.dials.Wait()
	for _, conn := range open {
		conn.Close()
	}
}
