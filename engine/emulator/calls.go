package emulator

import (
	"context"
	"errors"

	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/engine/internal/blocktable"
)

// errIdle is what calls get before Run.
var errIdle = errors.New("the engine does not run yet")

// call is something that others ask the loop to do with the scheduler.
type call struct {
	ctx  context.Context // of who waits for it
	when blocktable.When
	run  func(*batch.Scheduler)
	err  error         // set before done is closed
	done chan struct{} // closed when it has run, or was skipped
}

// do runs f on the loop. Whatever ends the wait, f has run to its end exactly if
// the error is nil.
func (e *Engine) do(ctx context.Context, when blocktable.When, f func(*batch.Scheduler)) error {
	c := &call{ctx: ctx, when: when, run: f, done: make(chan struct{})}
	e.mu.Lock()
	if e.phase != serving {
		err := errIdle
		if e.phase == stopped {
			err = errStopped
		}
		e.mu.Unlock()
		return err
	}
	e.calls = append(e.calls, c)
	e.poke()
	e.mu.Unlock()
	select {
	case <-c.done:
	case <-e.done:
	case <-ctx.Done():
		if e.recall(c) {
			return ctx.Err()
		}
		select { // the loop has it
		case <-c.done:
		case <-e.done:
		}
	}
	// What the loop had taken is done by the time that it ends.
	select {
	case <-c.done:
		return c.err
	default:
		return errStopped
	}
}

// recall takes a call back. It reports false when the loop has it already.
func (e *Engine) recall(c *call) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, x := range e.calls {
		if x == c {
			e.calls = append(e.calls[:i], e.calls[i+1:]...)
			return true
		}
	}
	return false
}

// takeCalls runs the calls that may run now, in the order they came. A caller
// that has given up gets nothing done any more.
func (e *Engine) takeCalls(s *batch.Scheduler, now blocktable.When) {
	e.mu.Lock()
	var take []*call
	keep := e.calls[:0]
	for _, c := range e.calls {
		if c.when <= now {
			take = append(take, c)
		} else {
			keep = append(keep, c)
		}
	}
	clear(e.calls[len(keep):])
	e.calls = keep
	e.mu.Unlock()
	if len(take) == 0 {
		return
	}
	for _, c := range take {
		if c.err = c.ctx.Err(); c.err == nil {
			c.run(s)
		}
		close(c.done)
	}
	e.publish(s)
}

// door is how the block table gets at the engine.
type door struct{ e *Engine }

var _ blocktable.Engine = door{}

// Do implements blocktable.Engine.
func (d door) Do(ctx context.Context, when blocktable.When, f func(*batch.Scheduler)) error {
	return d.e.do(ctx, when, f)
}

// Leg implements blocktable.Engine.
func (d door) Leg(name string) (*batch.Sequence, bool) {
	d.e.mu.Lock()
	defer d.e.mu.Unlock()
	st := d.e.legs[name]
	if st == nil || st.named == nil {
		return nil, false
	}
	return st.named, true
}
