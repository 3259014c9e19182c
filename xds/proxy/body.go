package proxy

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/internal/httpserver"
)

// body is a request's body that can be sent more than once: what was read from the client
// is kept, up to a limit, until a response has started.
//
// One goroutine, fill, reads the client's connection when a reader has nothing left.
// Readers only wait for it, so that closing one ends its Read at once: a transport
// whose endpoint has answered, or refused the request, returns only after its last Read.
// A client that sends nothing delays neither a retry nor the answer. Several readers
// exist while an abandoned attempt still reads; the newest gets all bytes.
type body struct {
	src   io.Reader
	limit int64
	touch func() // called after every read
	pool  *bufferPool

	mu      sync.Mutex
	changed sync.Cond   // broadcast when what follows has changed
	filling bool        // fill has been started
	wanted  bool        // a reader waits for more
	keep    bool        // a retry is still possible
	closed  bool        // the request is over: src must not be read any more
	held    []byte      // the bytes from base to total
	base    int64       // 0 unless bytes were dropped
	total   int64       // read from src
	end     error       // how src ended
	users   int         // those that use held: the request, its readers, and fill
	last    *bodyReader // the newest, which must get all bytes; the others are abandoned

	memory  httpserver.Share // of the proxy's budget, for held
	pace    httpserver.Pace  // counts the time for which src was read
	waited  time.Duration    // that time, without the read under way
	late    time.Duration    // when waited gets too long
	reading time.Time        // since when src is read; zero if it is not
}

var (
	errTooLarge    = errors.New("the body is larger than the buffer limit")
	errRequestOver = errors.New("the request is over")
	errNotRepeated = errors.New("the body is too large to be sent again")
	errNoRoom      = errors.New("the request bodies in progress use all memory that they may")
)

// newBody wraps a client's body. size is its length, -1 when unknown.
func newBody(src io.Reader, size, limit int64, touch func(), pool *bufferPool) *body {
	b := &body{src: src, limit: limit, touch: touch, pool: pool, keep: true, users: 1, memory: pool.budget.Share(),
		pace: httpserver.Pace{Least: pool.leastPace}, late: httpserver.Window}
	b.changed.L = &b.mu
	b.held = pool.get(min(max(size, 0), limit))
	if !b.memory.Resize(int64(cap(b.held))) {
		pool.put(b.held)
		b.held = nil
	}
	return b
}

// readAll reads the whole body into memory and passes each piece to see. The error is
// errTooLarge beyond the limit, errNoRoom beyond the budget, or the client's. It is called before newReader.
func (b *body) readAll(see func([]byte)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.end == nil {
		if !b.growLocked() {
			return errNoRoom
		}
		see(b.readLocked())
		if b.total > b.limit {
			return errTooLarge
		}
	}
	if b.end != io.EOF {
		return b.end
	}
	return nil
}

// growLocked makes room for further bytes; it returns false if the budget has none.
func (b *body) growLocked() bool {
	if len(b.held) < cap(b.held) {
		return true
	}
	if !b.memory.Resize(2 * max(int64(cap(b.held)), minBuffer)) {
		return false
	}
	b.held = grow(b.held)
	return true
}

// readLocked reads src once, without the lock, and returns the new bytes.
func (b *body) readLocked() []byte {
	space := b.held[len(b.held):cap(b.held)]
	b.reading = time.Now()
	b.mu.Unlock()
	n, err := b.src.Read(space)
	b.touch()
	b.mu.Lock()
	b.waited += time.Since(b.reading)
	b.reading = time.Time{}
	late, _ := b.pace.Arrived(n, int64(b.waited))
	b.late = time.Duration(late)
	b.held = b.held[:len(b.held)+n]
	b.total += int64(n)
	b.end = err
	return space[:n]
}

// fill reads src whenever a reader waits, until its end or that of the request.
func (b *body) fill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.releaseLocked()
	for b.end == nil && !b.closed {
		if !b.wanted {
			b.changed.Wait()
			continue
		}
		if !b.keep || b.total > b.limit || !b.growLocked() {
			if b.last.behindLocked() {
				// An abandoned reader waits; the last one still needs what is held.
				b.wanted = false
				continue
			}
			// The last reader has everything, and there will be no other.
			b.pool.put(b.held)
			b.held, b.base = make([]byte, 0, chunkBytes), b.total
			b.memory.Resize(chunkBytes) // without it, a body still passes
		}
		b.readLocked()
		b.wanted = false
		b.changed.Broadcast()
	}
}

// waitLocked waits until more was read, or until something else has changed.
func (b *body) waitLocked() {
	if !b.filling {
		b.filling = true
		b.users++
		go b.fill()
	}
	if !b.wanted {
		b.wanted = true
		b.changed.Broadcast()
	}
	b.changed.Wait()
}

// untilLate returns how much longer the client may take for its next bytes, which is
// negative when it is too slow; 0 without a limit. Only the time for which the proxy
// reads counts, so a slow upstream makes no client late.
func (b *body) untilLate() time.Duration {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.end != nil:
		return 0
	case b.reading.IsZero():
		// Between two reads; the watchdog asks again, but not for each byte.
		return max(b.late-b.waited, httpserver.Window/16)
	}
	if left := b.late - b.waited - time.Since(b.reading); left > 0 {
		return left
	}
	return -1
}

// pending reports whether more of the body may come; false without a body.
func (b *body) pending() bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.end == nil
}

// failure returns how the client broke the body; nil if it did not, and without a body.
func (b *body) failure() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.end == io.EOF {
		return nil
	}
	return b.end
}

// size returns the body's length once it is known.
func (b *body) size() (int64, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.total, b.end == io.EOF
}

// newReader returns a reader from the first byte on.
func (b *body) newReader() *bodyReader {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.users++
	b.last = &bodyReader{b: b}
	return b.last
}

// repeatable reports whether another attempt could send all of it; true without a body.
func (b *body) repeatable() bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.keep && b.base == 0 && b.total <= b.limit && (b.end == nil || b.end == io.EOF)
}

// commit says that there will be no further attempt.
func (b *body) commit() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.keep {
		b.keep = false
		b.releaseLocked()
	}
}

// close says that the request is over: readers get no further bytes. A read of src that
// is under way is the caller's to end.
func (b *body) close() {
	b.commit()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.changed.Broadcast()
}

// releaseLocked frees the memory after the last user.
func (b *body) releaseLocked() {
	if b.users--; b.users == 0 {
		b.pool.put(b.held)
		b.held, b.base = nil, b.total
		b.memory.Release()
	}
}

// bodyReader reads a body for one attempt. What follows b is guarded by b.mu.
type bodyReader struct {
	b      *body
	off    int64
	closed bool
}

// Read implements io.Reader.
func (r *bodyReader) Read(p []byte) (int, error) {
	b := r.b
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		switch {
		case r.closed:
			return 0, errors.New("body: read after close")
		case r.off < b.base:
			return 0, errNotRepeated
		case r.off < b.total:
			n := copy(p, b.held[r.off-b.base:])
			if r.off += int64(n); r.off == b.total {
				return n, b.end
			}
			return n, nil
		case b.end != nil:
			return 0, b.end
		case b.closed:
			return 0, errRequestOver
		}
		b.waitLocked()
	}
}

// behindLocked reports whether the reader has yet to read some of what is held.
func (r *bodyReader) behindLocked() bool { return !r.closed && r.off < r.b.total }

// Close implements io.Closer. A Read that waits returns.
func (r *bodyReader) Close() error {
	b := r.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if !r.closed {
		r.closed = true
		b.changed.Broadcast()
		b.releaseLocked()
	}
	return nil
}

// bufferPool recycles the memory of bodies.
type bufferPool struct {
	pool      sync.Pool
	budget    *httpserver.Budget
	leastPace int64 // intake.Pace.Least of the bodies
}

const (
	minBuffer = 4 << 10
	// What a client announces costs no more before it arrives.
	maxFirstBuffer = 64 << 10
	// A few huge bodies must not keep their memory for ever.
	maxPooledBuffer = 1 << 20
)

// get returns an empty buffer for n bytes, within what may be allocated before any byte
// has arrived.
func (p *bufferPool) get(n int64) []byte {
	if b, ok := p.pool.Get().(*[]byte); ok && int64(cap(*b)) >= min(n, maxFirstBuffer) {
		return (*b)[:0]
	}
	// One more byte than announced, for the read that returns the end.
	return make([]byte, 0, max(minBuffer, min(n+1, maxFirstBuffer)))
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
