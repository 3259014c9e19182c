package move_test

import (
	"sync"

	"github.com/cascadeinfer/cascade/policies"
)

// legConn is a leg between an engine and a front end. The engine's events arrive in order, when the
// link delivers them.
type legConn struct {
	w        *fleet
	stream   string
	leg      string
	epoch    policies.Epoch
	front    *replica
	replica  *replica
	mu       sync.Mutex
	queue    []event
	wake     chan struct{}
	gone     chan struct{}
	shutOnce sync.Once
}

// event is one event of a leg.
type event struct {
	id                    uint32
	token, finish, broken bool
}

func (w *fleet) newConn(front, replica *replica, name, leg string, epoch policies.Epoch) *legConn {
	c := &legConn{w: w, stream: name, leg: leg, epoch: epoch, front: front, replica: replica, wake: make(chan struct{}, 1), gone: make(chan struct{})}
	w.wg.Go(c.pump)
	return c
}

func (c *legConn) push(ev event) {
	c.mu.Lock()
	c.queue = append(c.queue, ev)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *legConn) pump() {
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
			if !c.w.deliver(c.gone, c.replica, c.front) {
				return
			}
			c.front.frontEnd.handleEvent(c, ev)
			if ev.finish || ev.broken {
				c.shut()
				return
			}
		}
	}
}

// shut closes the connection on this side.
func (c *legConn) shut() { c.shutOnce.Do(func() { close(c.gone) }) }

func (c *legConn) ended() bool {
	select {
	case <-c.gone:
		return true
	default:
		return false
	}
}

// hangUp closes a leg at the front end; the engine detects it when the link delivers.
func (c *legConn) hangUp() {
	c.shut()
	c.w.wg.Go(func() {
		if c.w.deliver(c.w.done, c.front, c.replica) {
			c.replica.engine.abort(c)
		}
	})
}
