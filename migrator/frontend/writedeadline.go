package frontend

import (
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// checksPerTimeout is how often a guard looks within its timeout.
	checksPerTimeout = 4
	// maxPiece is how many bytes a client must take within one timeout.
	maxPiece = 64 << 10
)

// withWriteDeadline gives every answer of a handler a write deadline: a client that takes
// nothing for as long as WriteTimeout is given up.
func (srv *Server) withWriteDeadline(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g := newDeadlineWriter(w, srv.cfg.WriteTimeout)
		defer g.end(r)
		next.ServeHTTP(g, r)
		if g.written {
			g.FlushError() // here, and not in the server, which would wait without an end
		}
	})
}

// deadlineWriter is a ResponseWriter whose writes and flushes end.
//
// A deadline of net/http is no means to that: on HTTP/2 it is a timer that
// resets the stream, whether a write waits or not, so that it would end streams
// that are merely quiet; and moving it costs more than a token. So a timer
// looks from time to time whether one and the same write still waits, and only
// then sets a deadline, which has passed. A token costs a few atomic additions.
type deadlineWriter struct {
	http.ResponseWriter
	control  *http.ResponseController
	interval time.Duration
	timeout  time.Duration
	writes   atomic.Uint64 // odd while a write waits
	written  bool          // the handler's: the answer has begun

	mu         sync.Mutex
	timer      *time.Timer
	lastWrites uint64 // calls at the last look
	waiting    int    // looks in a row that found it waiting
	ended      bool   // the ResponseWriter may not be touched any more
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
	switch now := g.writes.Load(); {
	case now%2 == 0:
		g.waiting = 0
	case now != g.lastWrites || g.waiting == 0:
		g.lastWrites, g.waiting = now, 1
	default:
		g.waiting++
	}
	if g.waiting > checksPerTimeout {
		g.control.SetWriteDeadline(time.Unix(1, 0)) // a server that cannot has a deadline of its own
		return
	}
	g.timer.Reset(g.interval)
}

func (g *deadlineWriter) end(r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	g.timer.Stop()
	if r.ProtoMajor == 1 && g.waiting <= checksPerTimeout {
		// For what ends the answer; the server clears it before the next request.
		g.control.SetWriteDeadline(time.Now().Add(g.timeout))
	}
}

// Unwrap lets http.ResponseController find the read deadline.
func (g *deadlineWriter) Unwrap() http.ResponseWriter { return g.ResponseWriter }

func (g *deadlineWriter) WriteHeader(status int) {
	g.written = g.written || status >= http.StatusOK
	g.ResponseWriter.WriteHeader(status)
}

func (g *deadlineWriter) Write(b []byte) (n int, err error) {
	g.written = true
	for {
		part := b[n:min(n+maxPiece, len(b))]
		g.writes.Add(1)
		m, err := g.ResponseWriter.Write(part)
		g.writes.Add(1)
		if n += m; err != nil || n >= len(b) {
			return n, err
		}
	}
}

// FlushError is what http.ResponseController looks for.
func (g *deadlineWriter) FlushError() error {
	g.writes.Add(1)
	defer g.writes.Add(1)
	return g.control.Flush()
}
