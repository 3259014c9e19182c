package control

import (
	"io"
	"net/http"
	"time"
)

const (
	// drainTimeout is how long a refused request may go on sending its body: what a push
	// that used its time up has left of the server's, but for the answer.
	drainTimeout = adminTimeout - pushTimeout - answerTimeout
	// answerTimeout is for an answer that is made.
	answerTimeout = 2 * time.Second
)

// drainBody reads what a handler has left of a request's body, up to a size and for
// drainTimeout, before its answer ends the connection. A connection that is closed
// before is reset, and who still sends is told that instead of what was wrong. Answers
// that are small enough to be buffered come after the body. Who asks first whether to
// send it (Expect: 100-continue) and was not told to, sends none.
func drainBody(most int64, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		left := &trackedBody{ReadCloser: r.Body}
		// The server goes by the type of its own request's body.
		inner := *r
		inner.Body = left
		next.ServeHTTP(w, &inner)
		// One that was read to its end, or too slow, is not read again.
		if left.ended || !left.read && r.Header.Get("Expect") != "" {
			return
		}
		if http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainTimeout)) == nil {
			_, _ = io.CopyN(io.Discard, left, most)
		}
	})
}

// trackedBody is a body that knows whether it was asked for, and whether more of it may
// come.
type trackedBody struct {
	io.ReadCloser
	read, ended bool
}

func (r *trackedBody) Read(p []byte) (int, error) {
	r.read = true
	n, err := r.ReadCloser.Read(p)
	r.ended = r.ended || err != nil
	return n, err
}
