package proxy

import (
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Causes of the request's context when the watchdog ends it.
var (
	errSlowBody = errors.New("the request body arrives too slowly")
	errIdle     = errors.New("no data in either direction for the idle timeout")
)

// watchdog ends a request that takes too long between two bytes, or whose body is slow. It has one
// timer, which compares the time of the last progress when it fires; so a byte costs one
// clock reading and one atomic store.
type watchdog struct {
	idle         time.Duration // 0 = none
	begun        time.Time
	lastProgress atomic.Int64 // time of the last byte, since begun
	cancel       func(error)
	control      *http.ResponseController
	reading      func() bool          // the request's body is still to come
	untilLate    func() time.Duration // see body.untilLate
	answering    atomic.Bool          // the response headers were sent

	mu      sync.Mutex
	timer   *time.Timer
	stopped bool
}

// start begins the limits anew, for another part of the request.
func (w *watchdog) start() {
	w.recordProgress()
	w.mu.Lock()
	defer w.mu.Unlock()
	if first := w.nextTimeout(0, 0, max(w.untilLate(), 0)); first > 0 && w.timer == nil {
		w.timer = time.AfterFunc(first, w.fire)
	}
}

// recordProgress records that a byte was read or written.
func (w *watchdog) recordProgress() { w.lastProgress.Store(int64(time.Since(w.begun))) }

// nextTimeout returns the time until a limit may be reached; 0 if there is none. late is
// what untilLate returned, at least 0.
func (w *watchdog) nextTimeout(age, alive, late time.Duration) time.Duration {
	if w.idle == 0 {
		return late
	}
	idle := max(w.idle-(age-alive), 1)
	if late == 0 {
		return idle
	}
	return min(idle, late)
}

func (w *watchdog) fire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	age, alive, late := time.Since(w.begun), time.Duration(w.lastProgress.Load()), w.untilLate()
	switch {
	case w.idle > 0 && age-alive >= w.idle:
		w.endRequest(errIdle)
	case late < 0:
		w.endRequest(errSlowBody)
	default:
		if next := w.nextTimeout(age, alive, late); next > 0 {
			w.timer.Reset(next)
		}
	}
}

// endRequest ends the request: the upstream part through the context, and pending reads
// from or writes to the client through a deadline in the past. If the response has not
// started, writes stay possible for the error.
func (w *watchdog) endRequest(cause error) {
	w.stopped = true
	w.cancel(cause)
	// Not every connection supports deadlines; the server's own limits remain then.
	if w.reading() {
		_ = w.control.SetReadDeadline(time.Unix(1, 0))
	}
	if w.answering.Load() {
		_ = w.control.SetWriteDeadline(time.Unix(1, 0))
	}
}

// stop stops the timer. After it returns, the timer has no effect.
func (w *watchdog) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	if w.timer != nil {
		w.timer.Stop()
	}
}
