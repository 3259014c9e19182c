package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Timeouts of a Conn.
const (
	frameTimeout = 10 * time.Second // from the first byte of a frame to its last
	writeTimeout = 5 * time.Second  // for a frame: a peer that does not read is closed
)

// Conn is one end of a connection. One goroutine reads; any may write, call and close.
type Conn struct {
	*net.UnixConn
	writing sync.Mutex // held while a frame is written

	mu    sync.Mutex
	last  uint64
	calls map[uint64]chan *Answer // that wait; nil after Fail
}

// NewConn returns a Conn on a connection whose first frames were exchanged.
func NewConn(c *net.UnixConn) *Conn {
	return &Conn{UnixConn: c, calls: make(map[uint64]chan *Answer)}
}

// Read reads a frame. It waits for its first byte without a limit: there may be nothing to say for long.
func (c *Conn) Read() (f Frame, err error) {
	var head [headBytes]byte
	c.SetReadDeadline(time.Time{})
	if _, err := io.ReadFull(c.UnixConn, head[:1]); err != nil {
		return f, err
	}
	c.SetReadDeadline(time.Now().Add(frameTimeout))
	if _, err := io.ReadFull(c.UnixConn, head[1:]); err != nil {
		return f, err
	}
	return readBody(c.UnixConn, head)
}

// Write sends a frame. If it cannot, it closes the connection and returns ErrConnectionEnded, unless the frame is invalid.
func (c *Conn) Write(f Frame) error {
	b, err := f.Append(nil)
	if err != nil {
		return err
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	c.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, err = c.UnixConn.Write(b); err != nil {
		c.Close() // the rest of the frame is missing
		return fmt.Errorf("%w: %w", ErrConnectionEnded, err)
	}
	return nil
}

// ErrConnectionEnded is the error of frames and calls whose connection has ended.
var ErrConnectionEnded = errors.New("the connection has ended")

// Call asks the engine and returns its answer, or a *Refusal. The goroutine that reads passes answers to Deliver.
func (c *Conn) Call(ctx context.Context, q Call) (*Answer, error) {
	answer := make(chan *Answer, 1)
	c.mu.Lock()
	if c.calls == nil {
		c.mu.Unlock()
		return nil, ErrConnectionEnded
	}
	c.last++
	q.ID = c.last
	c.calls[q.ID] = answer
	c.mu.Unlock()
	if err := c.Write(Frame{Call: &q}); err != nil {
		c.forget(q.ID)
		return nil, err
	}
	select {
	case a := <-answer:
		switch {
		case a == nil:
			return nil, ErrConnectionEnded
		case a.Code != "":
			return nil, &Refusal{a.Code, a.Error}
		}
		return a, nil
	case <-ctx.Done():
		c.forget(q.ID)
		_ = c.Write(Frame{Cancel: &Cancel{q.ID}})
		return nil, ctx.Err()
	}
}

func (c *Conn) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.calls, id)
}

// Deliver passes an answer to its call. An answer for which no call waits is dropped.
func (c *Conn) Deliver(a *Answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if answer := c.calls[a.ID]; answer != nil {
		delete(c.calls, a.ID)
		answer <- a
	}
}

// Fail ends all calls, and further ones.
func (c *Conn) Fail() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, answer := range c.calls {
		answer <- nil
	}
	c.calls = nil
}
