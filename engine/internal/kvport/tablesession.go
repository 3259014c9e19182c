package kvport

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/internal/blocktable"
)

// maxCalls bounds the calls of a connection at a time. More are read when some have ended.
const maxCalls = 1024

// serveTable answers the calls of a connection until it ends, and undoes what they have made.
func serveTable(ctx context.Context, table *blocktable.Table, conn *api.Conn) error {
	session, err := table.Open(ctx)
	if err != nil {
		return err
	}
	defer session.End()
	ctx, cancel := context.WithCancel(ctx)
	c := calls{conn: conn, session: session, running: make(map[uint64]context.CancelFunc), places: make(chan struct{}, maxCalls)}
	defer c.all.Wait()
	defer cancel()
	for {
		f, err := conn.Read()
		switch {
		case err != nil:
			return err
		case f.Call != nil:
			if err := c.start(ctx, f.Call); err != nil {
				return err
			}
		case f.Cancel != nil:
			c.mu.Lock()
			if cancel := c.running[f.Cancel.ID]; cancel != nil {
				cancel()
			}
			c.mu.Unlock()
		default:
			return fmt.Errorf("kv.sock: unexpected %s", f.Name())
		}
	}
}

// calls are the calls of one connection.
type calls struct {
	conn    *api.Conn
	session *blocktable.Session
	places  chan struct{}
	all     sync.WaitGroup

	mu      sync.Mutex
	running map[uint64]context.CancelFunc // by id
}

// start executes a call on its own goroutine.
func (c *calls) start(ctx context.Context, q *api.Call) error {
	c.places <- struct{}{}
	ctx, cancel := context.WithCancel(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running[q.ID] != nil {
		cancel()
		return fmt.Errorf("kv.sock: the call %d is running", q.ID)
	}
	c.running[q.ID] = cancel
	c.all.Go(func() {
		defer func() { <-c.places }()
		defer cancel()
		a, err := c.session.Call(ctx, q)
		if err != nil {
			a = &api.Answer{Code: api.Unavailable, Error: err.Error()}
			if refused := (*api.Refusal)(nil); errors.As(err, &refused) {
				a.Code = refused.Code
			}
			a.Error = a.Error[:min(len(a.Error), api.MaxText)]
		}
		a.ID = q.ID
		c.mu.Lock()
		delete(c.running, q.ID)
		c.mu.Unlock()
		if c.conn.Write(api.Frame{Answer: a}) != nil {
			c.conn.Close()
		}
	})
	return nil
}
