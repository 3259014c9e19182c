package frontend

import (
	"cmp"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// maxPiece is how many bytes a client must read within each timeout, unless it has read everything.
const maxPiece = 64 << 10

// deadlineWriter is a ResponseWriter whose writes and flushes have a deadline: the answer is
// cut if they wait for the client at all checks of a timeout, and it reads less than maxPiece meanwhile.
//
// A deadline of net/http cannot be used for that: on HTTP/2 it is a timer that
// resets the stream whether or not a write waits, so it would end streams that
// are merely quiet; and extending it costs more than a token. So a timer checks
// from time to time whether a write waits, and only then sets a deadline that has
// passed already. A token costs a few atomic additions.
type deadlineWriter struct {
	http.ResponseWriter
	control  *http.ResponseController
	interval time.Duration
	timeout  time.Duration
	writes   callWatch
	bytes    atomic.Int64 // written so far
	status   int          // of the answer; 0 before it begins; used by the handler only

	mu      sync.Mutex
	timer   *time.Timer
	waiting int   // checks in a row that found a write waiting
	from    int64 // bytes at the first of them
	stuck   bool  // a write missed the deadline
	ended   bool  // the handler has returned: the ResponseWriter must not be used
}

func newDeadlineWriter(w http.ResponseWriter, timeout time.Duration) *deadlineWriter {
	g := &deadlineWriter{ResponseWriter: w, control: http.NewResponseController(w), timeout: timeout, interval: max(timeout/checksPerTimeout, 1)}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.timer = time.AfterFunc(g.interval, g.check)
	return g
}

func (g *deadlineWriter) check() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return
	}
	switch bytes := g.bytes.Load(); {
	case !g.writes.inCall():
		g.waiting = 0
	case g.waiting == 0 || bytes-g.from >= maxPiece:
		g.waiting, g.from = 1, bytes
	default:
		g.waiting++
	}
	if g.stuck = g.waiting > checksPerTimeout; g.stuck {
		g.control.SetWriteDeadline(time.Unix(1, 0)) // fails only on servers that have a deadline of their own
		return
	}
	g.timer.Reset(g.interval)
}

// end is called when the handler has returned. It reports whether the answer was cut.
func (g *deadlineWriter) end(r *http.Request) (cut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	g.timer.Stop()
	if r.ProtoMajor == 1 && !g.stuck {
		// For the bytes that end the answer; the server clears it before the next
		// request.
		g.control.SetWriteDeadline(time.Now().Add(g.timeout))
	}
	return g.stuck
}

// Unwrap is how http.ResponseController finds the read deadline.
func (g *deadlineWriter) Unwrap() http.ResponseWriter { return g.ResponseWriter }

func (g *deadlineWriter) WriteHeader(status int) {
	if status >= http.StatusOK {
		g.status = cmp.Or(g.status, status)
	}
	g.ResponseWriter.WriteHeader(status)
}

func (g *deadlineWriter) Write(b []byte) (n int, err error) {
	g.status = cmp.Or(g.status, http.StatusOK)
	for {
		part := b[n:min(n+maxPiece, len(b))]
		g.writes.begin()
		m, err := g.ResponseWriter.Write(part)
		g.writes.end()
		g.bytes.Add(int64(m))
		if n += m; err != nil || n >= len(b) {
			return n, err
		}
	}
}

// FlushError implements what http.ResponseController flushes with.
func (g *deadlineWriter) FlushError() error {
	g.status = cmp.Or(g.status, http.StatusOK)
	g.writes.begin()
	defer g.writes.end()
	return g.control.Flush()
}

// checksPerTimeout is how often a callWatch is checked within the timeout.
const checksPerTimeout = 4

// callWatch detects a call that does not return. A call costs two atomic additions,
// and neither a timer nor a clock reading: a timer of the user checks from time to
// time whether the same call still waits.
type callWatch struct {
	calls atomic.Uint64 // odd while a call waits

	// Used by check only.
	last    uint64 // calls at the last check
	waiting int
}

// begin is called before the call, and end after it.
func (w *callWatch) begin() { w.calls.Add(1) }
func (w *callWatch) end()   { w.calls.Add(1) }

// inCall reports whether a call waits now.
func (w *callWatch) inCall() bool { return w.calls.Load()%2 == 1 }

// check returns how many checks in a row, this one included, have found the same
// call waiting.
func (w *callWatch) check() int {
	switch now := w.calls.Load(); {
	case now%2 == 0:
		w.waiting = 0
	case now != w.last || w.waiting == 0:
		w.last, w.waiting = now, 1
	default:
		w.waiting++
	}
	return w.waiting
}
