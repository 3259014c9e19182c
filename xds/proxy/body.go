package proxy

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
)

// body is a request's body that can be sent more than once: what was read from the client
// is kept, up to a limit, until a response has started.
//
// Readers share the client's connection. Only the newest one matters; an older one that
// an abandoned attempt still reads cannot take bytes away, because everything read is
// kept for the newest.
type body struct {
	limit  int64
	keep   atomic.Bool // a retry is still possible
	done   atomic.Bool // src is at its end
	closed atomic.Bool // src must not be read any more
	touch  func()      // called after every read
	pool   *bufferPool

	mu    sync.Mutex // held while reading src
	src   io.Reader
	held  []byte // the first total bytes, unless lost
	total int64  // read from src
	end   error  // how src ended
	lost  bool   // total exceeded limit: held was dropped
	users int    // readers that may still use held
}

var (
	errTooLarge    = errors.New("the body is larger than the buffer limit")
	errRequestOver = errors.New("the request is over")
	errNotRepeated = errors.New("the body is too large to be sent again")
)

// newBody wraps a client's body. size is its length, -1 when unknown.
func newBody(src io.Reader, size, limit int64, touch func(), pool *bufferPool) *body {
	b := &body{limit: limit, src: src, touch: touch, pool: pool, users: 1}
	b.keep.Store(true)
	b.held = pool.get(min(max(size, 0), limit))
	return b
}

// readAll reads the whole body into memory and passes each piece to see. The error is
// errTooLarge beyond the limit, or the client's.
func (b *body) readAll(see func([]byte)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.end == nil {
		if len(b.held) == cap(b.held) {
			b.held = grow(b.held)
		}
		n, err := b.src.Read(b.held[len(b.held):cap(b.held)])
		b.touch()
		see(b.held[len(b.held) : len(b.held)+n])
		b.held = b.held[:len(b.held)+n]
		b.total += int64(n)
		b.finish(err)
		if b.total > b.limit {
			return errTooLarge
		}
	}
	if b.end != io.EOF {
		return b.end
	}
	return nil
}

func (b *body) finish(err error) {
	if err != nil {
		b.end = err
		b.done.Store(true)
	}
}

// size returns the body's length once it is known.
func (b *body) size() (int64, bool) {
	if !b.done.Load() {
		return 0, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.total, b.end == io.EOF
}

// newReader returns a reader from the first byte on.
func (b *body) newReader() *bodyReader {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.users++
	return &bodyReader{b: b}
}

// repeatable reports whether another attempt could send all of it.
func (b *body) repeatable() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.lost && (b.end == nil || b.end == io.EOF)
}

// commit says that there will be no further attempt.
func (b *body) commit() {
	if b.keep.Swap(false) {
		b.release()
	}
}

// release frees the memory after the last user. If a read is under way, the garbage
// collector frees it instead.
func (b *body) release() {
	if b.mu.TryLock() {
		b.releaseLocked()
		b.mu.Unlock()
	}
}

func (b *body) releaseLocked() {
	if b.users--; b.users == 0 {
		b.pool.put(b.held)
		b.held, b.lost = nil, true
	}
}

// drain stops the reading of src, waits for a read that is under way, and reads up to
// most further bytes. It reports whether src is at its end.
//
// It is needed for net/http's server: with both directions of an HTTP/1.1 connection in
// use, a body that is not at its end when the handler returns makes the server read the
// next request while it still reads this one (panic "invalid concurrent Body.Read
// call").
func (b *body) drain(most int) bool {
	b.closed.Store(true)
	b.mu.Lock()
	defer b.mu.Unlock()
	var scrap [4 << 10]byte
	for b.end == nil && most > 0 {
		n, err := b.src.Read(scrap[:])
		b.total += int64(n)
		b.lost = true
		most -= n
		b.finish(err)
	}
	return b.end == io.EOF
}

// bodyReader reads a body for one attempt.
type bodyReader struct {
	b      *body
	off    int64
	closed atomic.Bool
}

// Read implements io.Reader.
func (r *bodyReader) Read(p []byte) (int, error) {
	b := r.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.closed.Load() {
		return 0, errors.New("body: read after close")
	}
	if r.off < b.total {
		if b.lost {
			return 0, errNotRepeated
		}
		n := copy(p, b.held[r.off:])
		r.off += int64(n)
		if r.off == b.total && b.end != nil {
			return n, b.end
		}
		return n, nil
	}
	if b.end != nil {
		return 0, b.end
	}
	if b.closed.Load() {
		return 0, errRequestOver
	}
	n, err := b.src.Read(p)
	b.touch()
	switch {
	case n == 0:
	case b.lost:
	case b.keep.Load() && b.total+int64(n) <= b.limit:
		b.held = append(b.held, p[:n]...)
	default:
		// Too long to keep, or no longer needed.
		b.lost = true
	}
	b.total += int64(n)
	r.off += int64(n)
	b.finish(err)
	return n, err
}

// Close implements io.Closer. It never waits for a Read.
func (r *bodyReader) Close() error {
	if !r.closed.Swap(true) {
		r.b.release()
	}
	return nil
}

// bufferPool recycles the memory of bodies.
type bufferPool struct{ pool sync.Pool }

const (
	minBuffer = 4 << 10
	// A few huge bodies must not keep their memory for ever.
	maxPooledBuffer = 1 << 20
)

// get returns an empty buffer for n bytes, within what may be allocated before any byte
// has arrived.
func (p *bufferPool) get(n int64) []byte {
	if b, ok := p.pool.Get().(*[]byte); ok && int64(cap(*b)) >= n {
		return (*b)[:0]
	}
	// One more byte than announced, for the read that returns the end.
	return make([]byte, 0, max(minBuffer, min(n+1, maxPooledBuffer)))
}

// grow returns the same bytes with a larger capacity.
func grow(b []byte) []byte {
	out := make([]byte, len(b), 2*max(cap(b), minBuffer))
	copy(out, b)
	return out
}

func (p *bufferPool) put(b []byte) {
	if cap(b) >= minBuffer && cap(b) <= maxPooledBuffer {
		b = b[:0]
		p.pool.Put(&b)
	}
}
