package emulator

import (
	"context"
	"time"

	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/engine/internal/blocktable"
)

// loop runs the replica: one goroutine, one iteration after the other.
//
// Iterations have an absolute schedule: each starts when the previous one was due, not when
// its timer fired, so that late timers do not slow the replica down. The work of an iteration
// is done at its start and published at its end.
//
// It returns nil when ctx ends, and the pool's error when its memory has failed.
func (e *Engine) loop(ctx context.Context, s *batch.Scheduler) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for e.waitWhileHung(ctx) {
		e.takeInbox(s)
		e.takeCalls(s, blocktable.AtBoundary)
		if err := s.Pool.Err(); err != nil {
			return err
		}
		if s.Idle() {
			e.due = time.Time{}
			e.waitForWork(ctx)
			continue
		}
		start := time.Now()
		if e.due.IsZero() {
			e.due = start
		} else if lag := start.Sub(e.due); lag > maxLag {
			e.metrics.lag.Add(lag.Seconds())
			e.cfg.Logger.Warn("emulated replica cannot keep up with its profile", "model", e.cfg.Model, "behind", lag)
			e.due = start
		}
		step := s.Step()
		e.transfer.startLoads(ctx, step.Loads)
		if err := s.Pool.Err(); err != nil {
			return err
		}
		if step.Seconds == 0 { // until blocks are freed, loaded or not full any more
			e.due = time.Time{}
			e.publish(s)
			e.waitForWork(ctx)
			continue
		}
		e.due = e.due.Add(time.Duration(step.Seconds * float64(time.Second)))
		e.publish(s)
		if wait := time.Until(e.due); wait > 0 {
			timer.Reset(wait)
			if !e.waitIteration(ctx, s, timer.C) {
				return nil
			}
		}
		if !e.waitWhileHung(ctx) {
			return nil
		}
		e.now = time.Now()
		e.recordPace(step.Seconds, e.now)
		s.Settle()
		e.events.publish(ctx, e.now)
		e.metrics.iterationTokens.Observe(float64(step.Decodes) + float64(step.Prefill))
		for _, event := range step.Events {
			event.Sequence.Receiver.Receive(event)
		}
	}
	return nil
}

// waitForWork waits until the inbox is not empty.
func (e *Engine) waitForWork(ctx context.Context) {
	select {
	case <-e.wake:
	case <-ctx.Done():
	}
}

// waitIteration waits for an iteration's end and meanwhile runs the calls that may run
// immediately. It returns false when ctx ends.
func (e *Engine) waitIteration(ctx context.Context, s *batch.Scheduler, over <-chan time.Time) bool {
	for {
		select {
		case <-over:
			return true
		case <-e.wake: // the inbox is read at the end of the iteration
			e.takeCalls(s, blocktable.Immediately)
		case <-ctx.Done():
			return false
		}
	}
}

// takeInbox passes submitted and aborted requests to the scheduler.
func (e *Engine) takeInbox(s *batch.Scheduler) {
	e.mu.Lock()
	inbox, cancel := e.inbox, e.cancel
	e.inbox, e.cancel = nil, nil
	e.mu.Unlock()
	if len(inbox)+len(cancel) == 0 {
		return
	}
	for _, st := range inbox {
		s.Add(st.sequence)
	}
	for _, st := range cancel {
		s.Abort(st.sequence)
		if st.stopPull != nil {
			st.stopPull()
		}
	}
	e.publish(s)
}

// publish copies the scheduler's counters for /metrics.
func (e *Engine) publish(s *batch.Scheduler) {
	stats := s.Stats()
	e.mu.Lock()
	e.stats = stats
	e.mu.Unlock()
}
