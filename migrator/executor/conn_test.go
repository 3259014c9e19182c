package executor_test

import (
	"sync"

	"github.com/cascadeinfer/cascade/policies"
)

// conn is a leg between an engine and a front. What the engine pushes arrives in
// order, when the link lets it.
type conn struct {
	w        *world
	stream   string
	leg      string
	epoch    policies.Epoch
	front    *node
	replica  *node
	mu       sync.Mutex
	queue    []event
	wake     chan struct{}
	gone     chan struct{}
	shutOnce sync.Once
}

// event is one thing that a leg brings.
type event struct {
	id                    uint32
	token, finish, broken bool
}

func (w *world) newConn(front, replica *node, name, leg string, epoch policies.Epoch) *conn {
	c := &conn{w: w, stream: name, leg: leg, epoch: epoch, front: front, replica: replica, wake: make(chan struct{}, 1), gone: make(chan struct{})}
	w.wg.Go(c.pump)
	return c
}

func (c *conn) push(ev event) {
	c.mu.Lock()
	c.queue = append(c.queue, ev)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *conn) pump() {
	for {
		select {
		case <-c.gone:
			return
		case <-c.wake:
		}
		for {
			c.mu.Lock()
			if len(c.queue) == 0 {
				c.mu.Unlock()
				break
			}
			ev := c.queue[0]
			c.queue = c.queue[1:]
			c.mu.Unlock()
			if !c.w.pass(c.gone, c.replica, c.front) {
				return
			}
			c.front.front.hear(c, ev)
			if ev.finish || ev.broken {
				c.shut()
				return
			}
		}
	}
}

// shut ends the connection on this side.
func (c *conn) shut() { c.shutOnce.Do(func() { close(c.gone) }) }

func (c *conn) over() bool {
	select {
	case <-c.gone:
		return true
	default:
		return false
	}
}

// hangUp is the front's end of a leg; the engine hears of it when it can.
func (c *conn) hangUp() {
	c.shut()
	c.w.wg.Go(func() {
		if c.w.pass(c.w.done, c.front, c.replica) {
			c.replica.engine.abort(c)
		}
	})
}
