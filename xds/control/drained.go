package control

import (
	"io"
	"net/http"
	"time"
)

// drainTimeout is how long a refused request may go on sending its body.
const drainTimeout = 5 * time.Second

// drained reads what a handler has left of a request's body, up to a size and for
// drainTimeout, before its answer ends the connection. A connection that is closed
// before is reset, and who still sends is told that instead of what was wrong. Answers
// that are small enough to be buffered come after the body.
func drained(most int64, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		left := &remainder{ReadCloser: r.Body}
		r.Body = left
		next.ServeHTTP(w, r)
		// One that was read to its end, or too slow, is not read again.
		if !left.ended && http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainTimeout)) == nil {
			_, _ = io.CopyN(io.Discard, left, most)
		}
	})
}

// remainder is a body that knows whether more of it may come.
type remainder struct {
	io.ReadCloser
	ended bool
}

func (r *remainder) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.ended = r.ended || err != nil
	return n, err
}
