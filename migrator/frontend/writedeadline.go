package frontend

import (
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// looks is how often a guard looks within its timeout.
	looks = 4
	// piece is how many bytes a client must take within one timeout.
	piece = 64 << 10
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
	control *http.ResponseController
	every   time.Duration
	timeout time.Duration
	calls   atomic.Uint64 // odd while a write waits
	written bool          // the handler's: the answer has begun

	mu    sync.Mutex
	timer *time.Timer
	stuck uint64 // calls at the last look
	times int    // looks in a row that found it waiting
	over  bool   // the ResponseWriter may not be touched any more
}

func newDeadlineWriter(w http.ResponseWriter, timeout time.Duration) *deadlineWriter {
	g := &deadlineWriter{ResponseWriter: w, control: http.NewResponseController(w), timeout: timeout, every: max(timeout/looks, 1)}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.timer = time.AfterFunc(g.every, g.look)
	return g
}

func (g *deadlineWriter) look() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over {
		return
	}
	switch now := g.calls.Load(); {
	case now%2 == 0:
		g.times = 0
	case now != g.stuck || g.times == 0:
		g.stuck, g.times = now, 1
	default:
		g.times++
	}
	if g.times > looks {
		g.control.SetWriteDeadline(time.Unix(1, 0)) // a server that cannot has a deadline of its own
		return
	}
	g.timer.Reset(g.every)
}

func (g *deadlineWriter) end(r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
	g.timer.Stop()
	if r.ProtoMajor == 1 && g.times <= looks {
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
		part := b[n:min(n+piece, len(b))]
		g.calls.Add(1)
		m, err := g.ResponseWriter.Write(part)
		g.calls.Add(1)
		if n += m; err != nil || n >= len(b) {
			return n, err
		}
	}
}

// FlushError is what http.ResponseController looks for.
func (g *deadlineWriter) FlushError() error {
	g.calls.Add(1)
	defer g.calls.Add(1)
	return g.control.Flush()
}
