package stream

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/migrator/stream/dialect"
	"github.com/cascadeinfer/cascade/migrator/stream/load"
	"github.com/cascadeinfer/cascade/policies"
)

// Leg is one engine's generation of a stream: a source of events.
//
// Next returns the next event, which holds until the next call. Its events are
// in the dialect of the client's endpoint, with token ids and usage; the one
// with [DONE] is the last. An error is final, and io.EOF before [DONE] is one.
// One goroutine at a time calls Next.
//
// Close ends the generation at its engine and makes a waiting Next return. It
// may be called by any goroutine, more than once.
type Leg interface {
	Next() (*dialect.Chunk, error)
	Close() error
}

// errIdle says that an engine sent nothing for too long.
var errIdle = errors.New("the engine sent nothing for too long")

// wireLeg is a Leg over the body of an HTTP response.
type wireLeg struct {
	body   io.ReadCloser
	reader *dialect.Reader
	chunk  dialect.Chunk
	work   *load.Work // nil where another replica counts
	start  time.Time
	idle   time.Duration
	seen   atomic.Int64 // when the last event came, since start
	late   atomic.Bool
	timer  *time.Timer
	closed atomic.Bool
}

// ReadLeg returns the Leg that an engine sends as body. Events that come idle
// or more apart are an error; idle must be positive.
func ReadLeg(body io.ReadCloser, idle time.Duration) Leg { return readLeg(body, idle, nil) }

func readLeg(body io.ReadCloser, idle time.Duration, work *load.Work) *wireLeg {
	l := &wireLeg{body: body, reader: dialect.NewReader(body), work: work, start: time.Now(), idle: idle}
	// One timer looks from time to time: a token must not pay for a timer. It
	// starts when l.timer is set, for look resets it.
	l.timer = time.AfterFunc(time.Hour, l.look)
	l.timer.Reset(idle)
	return l
}

func (l *wireLeg) look() {
	rest := l.idle - (time.Since(l.start) - time.Duration(l.seen.Load()))
	switch {
	case l.closed.Load():
	case rest > 0:
		l.timer.Reset(rest)
	default:
		l.late.Store(true)
		l.body.Close()
	}
}

func (l *wireLeg) Next() (*dialect.Chunk, error) {
	ev, err := l.reader.Next()
	if err != nil {
		if l.late.Load() {
			err = errIdle
		}
		return nil, err
	}
	l.seen.Store(int64(time.Since(l.start)))
	if err := l.chunk.Parse(ev); err != nil {
		return nil, &malformed{err}
	}
	l.count(&l.chunk)
	return &l.chunk, nil
}

// malformed is an engine's event that is not the dialect's.
type malformed struct{ err error }

func (m *malformed) Error() string { return fmt.Sprintf("the engine's stream is malformed: %v", m.err) }
func (m *malformed) Unwrap() error { return m.err }

// count tells the load tracker what an event brings.
func (l *wireLeg) count(c *dialect.Chunk) {
	if l.work == nil || c.Empty || c.Done {
		return
	}
	if c.HasPrompt() {
		l.work.Prompt(policies.Tokens(c.PromptTokens()))
	}
	n := c.Tokens
	if c.HasText && !c.ListsIDs() {
		n = 1 // an engine without token ids; the usage at its end settles it
	}
	if n > 0 {
		l.work.Generated(n)
	}
	if u, ok := c.Usage(); ok {
		l.work.Settle(policies.Tokens(u.Prompt), policies.Tokens(u.Output), policies.Tokens(u.Cached))
	}
}

func (l *wireLeg) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	l.timer.Stop()
	err := l.body.Close()
	if l.work != nil {
		l.work.End()
	}
	return err
}

// finish reads the end of a body whose last event was read, so that its
// connection can serve again, and closes it.
func (l *wireLeg) finish() {
	l.timer.Stop()
	enough := time.AfterFunc(lastBytes, func() { l.body.Close() })
	l.reader.Next()
	enough.Stop()
	l.Close()
}

// lastBytes is how long an engine may take to end its body after [DONE].
const lastBytes = 50 * time.Millisecond

var _ Leg = (*wireLeg)(nil)

// idleBody is the body of an answer that is not looked into. It is closed when
// one read waits for too long; a client that is slow does not count.
type idleBody struct {
	io.ReadCloser
	idle  time.Duration
	timer *time.Timer
}

func newIdleBody(body io.ReadCloser, idle time.Duration) *idleBody {
	b := &idleBody{ReadCloser: body, idle: idle, timer: time.AfterFunc(idle, func() { body.Close() })}
	b.timer.Stop()
	return b
}

func (b *idleBody) Read(p []byte) (int, error) {
	b.timer.Reset(b.idle)
	n, err := b.ReadCloser.Read(p)
	if !b.timer.Stop() && err != nil {
		err = errIdle
	}
	return n, err
}
