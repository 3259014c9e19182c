package httpserver

import (
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// What is read of a request's body after its answer.
const (
	lingerTime  = time.Second
	lingerBytes = 16 << 20
)

// Handler returns a handler that serves as next does and keeps the invariants of the
// package. The request's body may be read while the answer is written, from any
// goroutine, and closing it does not wait for the client.
func Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := &answer{ResponseWriter: w, control: *http.NewResponseController(w)}
		if r.ProtoMajor == 1 && r.Body != nil && r.Body != http.NoBody {
			a.body = &body{src: r.Body}
			r.Body = a.body
		}
		answered := false
		defer func(begun time.Time) {
			a.end(answered)
			a.countReset(r, begun)
		}(time.Now())
		next.ServeHTTP(a, r)
		if !a.begun {
			panic(http.ErrAbortHandler)
		}
		answered = true
	})
}

// answer is a ResponseWriter that knows whether the answer has begun.
type answer struct {
	http.ResponseWriter
	control http.ResponseController
	body    *body // of an HTTP/1 request that has one; nil otherwise
	begun   bool
}

// begin is called before the answer's header is sent.
func (a *answer) begin() {
	a.begun = true
	if a.body != nil && !a.body.ended.Load() {
		a.Header().Set("Connection", "close")
	}
}

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if !a.begun && status >= http.StatusOK {
		a.begin()
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (a *answer) Write(b []byte) (int, error) {
	if !a.begun {
		a.begin()
	}
	return a.ResponseWriter.Write(b)
}

// FlushError implements what http.ResponseController flushes with.
func (a *answer) FlushError() error {
	if !a.begun {
		a.begin()
	}
	return a.control.Flush()
}

// Unwrap is how http.ResponseController finds the deadlines.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// end makes sure that nothing reads the body after the handler, and that net/http, which
// reads from it once more, does not wait for the client.
func (a *answer) end(answered bool) {
	switch {
	case a.body == nil || a.body.ended.Load():
	case answered:
		_ = a.control.Flush() // fails if the client has left
		_ = a.control.SetReadDeadline(time.Now().Add(lingerTime))
		a.body.discard(lingerBytes)
	default:
		_ = a.control.SetReadDeadline(time.Unix(1, 0))
		a.body.discard(0)
	}
}

// body is the body of an HTTP/1 request.
type body struct {
	ended  atomic.Bool // src was read to its end
	closed atomic.Bool // only discard reads src

	mu  sync.Mutex // held while src is read
	src io.Reader
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.readLocked(p)
}

func (b *body) readLocked(p []byte) (int, error) {
	n, err := b.src.Read(p)
	if err == io.EOF {
		b.ended.Store(true)
	}
	return n, err
}

// Close implements io.Closer. It does not wait for a Read.
func (b *body) Close() error {
	b.closed.Store(true)
	return nil
}

// discard closes the body, waits for a Read that is under way, and reads up to most
// bytes of the rest.
func (b *body) discard(most int) {
	b.closed.Store(true)
	b.mu.Lock()
	defer b.mu.Unlock()
	var scrap [4 << 10]byte
	for n, err := 0, error(nil); err == nil && most > 0; most -= n {
		n, err = b.readLocked(scrap[:])
	}
}
