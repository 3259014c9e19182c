package frontend

import (
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
	written  bool         // the answer has begun; used by the handler only

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
	g.written = g.written || status >= http.StatusOK
	g.ResponseWriter.WriteHeader(status)
}

func (g *deadlineWriter) Write(b []byte) (n int, err error) {
	g.written = true
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
	g.written = true
	g.writes.begin()
	defer g.writes.end()
	return g.control.Flush()
}
