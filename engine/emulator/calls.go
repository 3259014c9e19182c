package emulator

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/engine/internal/blocktable"
)

// errIdle is returned to calls before Run.
var errIdle = errors.New("the engine does not run yet")

// call is a function for the loop to run with the scheduler.
type call struct {
	ctx  context.Context // of the caller
	when blocktable.RunPoint
	run  func(*batch.Scheduler)
	err  error         // set before done is closed
	done chan struct{} // closed when it has run or was skipped
}

// do runs f on the loop. If and only if the error is nil, f has run to its end.
func (e *Engine) do(ctx context.Context, when blocktable.RunPoint, f func(*batch.Scheduler)) error {
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
		if e.withdrawCall(c) {
			return ctx.Err()
		}
		select { // the loop has taken it
		case <-c.done:
		case <-e.done:
		}
	}
	// The loop finishes every call that it has taken before it ends.
	select {
	case <-c.done:
		return c.err
	default:
		return errStopped
	}
}

// withdrawCall removes a call. It returns false when the loop has taken it already.
func (e *Engine) withdrawCall(c *call) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := len(e.calls)
	e.calls = slices.DeleteFunc(e.calls, func(x *call) bool { return x == c })
	return len(e.calls) < n
}

// takeCalls runs the calls that may run now, in order. It skips calls whose callers have
// given up. A core that hangs runs none.
func (e *Engine) takeCalls(s *batch.Scheduler, now blocktable.RunPoint) {
	e.mu.Lock()
	if e.hung != nil {
		e.mu.Unlock()
		return
	}
	var take []*call
	e.calls = slices.DeleteFunc(e.calls, func(c *call) bool {
		if c.when <= now {
			take = append(take, c)
		}
		return c.when <= now
	})
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

// engineAdapter implements blocktable.Engine.
type engineAdapter struct{ e *Engine }

var _ blocktable.Engine = engineAdapter{}

// Do implements blocktable.Engine.
func (d engineAdapter) Do(ctx context.Context, when blocktable.RunPoint, f func(*batch.Scheduler)) error {
	return d.e.do(ctx, when, f)
}

// NextToken implements blocktable.Engine.
func (d engineAdapter) NextToken(s *batch.Scheduler) time.Duration {
	d.e.mu.Lock()
	var arriving []*batch.Sequence
	for _, st := range d.e.inbox {
		arriving = append(arriving, st.sequence)
	}
	d.e.mu.Unlock()
	next := time.Duration(s.Profile.Seconds(s.Forecast(arriving)) * float64(time.Second))
	return max(0, time.Until(d.e.due)) + next
}

// Leg implements blocktable.Engine.
func (d engineAdapter) Leg(name string) (*batch.Sequence, bool) {
	d.e.mu.Lock()
	defer d.e.mu.Unlock()
	st := d.e.legs[name]
	if st == nil || st.named == nil {
		return nil, false
	}
	return st.named, true
}
