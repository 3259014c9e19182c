package control

import (
	"io"
	"net/http"
	"time"
)

const (
	// drainTimeout is how long a refused request may continue to send its body: the
	// rest of the server's timeout after a push that used all of its own, less the time
	// for the response.
	drainTimeout = adminTimeout - pushTimeout - answerTimeout
	// answerTimeout is the time for a finished response.
	answerTimeout = 2 * time.Second
)

// drainBody reads what a handler has left of a request's body, up to most bytes
// and for drainTimeout, before the response ends the connection. Closing the
// connection earlier would reset it, and a client that is still sending would
// see the reset instead of the response. Responses that fit into the buffer are
// sent after the body. A client that sent Expect: 100-continue and got no 100
// sends no body.
func drainBody(most int64, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		left := &trackedBody{ReadCloser: r.Body}
		// The server looks at the type of the original request's body.
		inner := *r
		inner.Body = left
		next.ServeHTTP(w, &inner)
		// A body that was read to its end, or was too slow, is not read again.
		if left.ended || !left.read && r.Header.Get("Expect") != "" {
			return
		}
		if http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainTimeout)) == nil {
			_, _ = io.CopyN(io.Discard, left, most)
		}
	})
}

// trackedBody is a body that records whether it was read, and whether it has
// ended.
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
