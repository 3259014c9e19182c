package frontend

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/migrator/internal/session"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/admission"
)

// Why legs end that were not closed.
var (
	errIdle        = errors.New("the engine sent nothing for too long")
	errHung        = errors.New("the engine stopped in the middle of an answer although it has room for it")
	errNoProgress  = errors.New("the engine makes no progress")
	errEngineAway  = errors.New("the engine is away")
	errReplicaGone = errors.New("the replica is gone")
)

// wireLeg is one engine's generation of a stream, over the body of an HTTP response.
type wireLeg struct {
	body  io.ReadCloser
	local *localLeg // at the own engine; nil if another replica counts the tokens
	call  *call
	ahead readAhead
	chunk openai.Chunk // used by next only
	// Of the goroutine that reads the engine: of next, or of ahead.
	reader     *openai.Reader
	aheadChunk *openai.Chunk // of ahead; nil before it reads
	lost       bool          // the engine has reported so
	// firstText corrects the first text; nil if it needs no correction, or has got it. Used by next only.
	firstText *firstText
	closed    atomic.Bool
}

// readLeg returns the leg whose events an engine sends as body.
func readLeg(body io.ReadCloser, l *call, home *localLeg, idle time.Duration) *wireLeg {
	leg := &wireLeg{body: body, reader: openai.NewReader(body), local: home, call: l}
	leg.ahead.init(leg, l, home, idle)
	return leg
}

// next returns the next event, which is valid until the next call. Events are
// those of the client's endpoint, with token ids and usage; the one with [DONE]
// is the last. An error is final; so is io.EOF, which is an error before [DONE].
// One goroutine at a time calls next.
func (l *wireLeg) next() (*openai.Chunk, error) {
	raw, direct, err := l.ahead.next(nil)
	if err != nil {
		return nil, l.call.causeOr(err)
	}
	c := &l.chunk
	if !direct {
		c = new(openai.Chunk)
		if err := c.Parse(openai.ParseEvent(raw)); err != nil {
			return nil, &session.MalformedError{Err: err}
		}
	}
	if l.firstText == nil {
		return c, nil
	}
	c, done, err := l.firstText.correct(c)
	if done {
		l.firstText = nil
	}
	return c, err
}

// readPiece reads an event from the engine, and counts it. If next calls, l.chunk is that event then.
func (l *wireLeg) readPiece(_ []byte, ahead bool) ([]byte, error) {
	c := &l.chunk
	if ahead {
		c = l.aheadChunk
	}
	ev, err := l.reader.Next()
	if err != nil {
		return nil, err
	}
	if err := c.Parse(ev); err != nil {
		return nil, &session.MalformedError{Err: err}
	}
	l.track(c)
	l.lost = l.lost || session.ReportsLoss(c)
	if c.Done && l.local != nil {
		l.local.unregister(l.lost)
	}
	return ev.Raw, nil
}

func (l *wireLeg) detach() []byte {
	l.reader.Detach()
	l.aheadChunk = new(openai.Chunk)
	return nil
}

// endAhead ends the leg of a lost engine, although its reader may not have come to the error yet.
func (l *wireLeg) endAhead() {
	if !l.closed.Load() {
		l.local.unregister(true)
	}
}

// track reports what an event brings to the load tracker.
func (l *wireLeg) track(c *openai.Chunk) {
	first := (c.Tokens > 0 || c.HasText) && !l.ahead.watch.hasToken.Load()
	if first {
		l.ahead.watch.hasToken.Store(true)
	}
	if l.local == nil || c.Empty || c.Done {
		return
	}
	work := l.local.work
	if first {
		l.local.server.admission.update(func(a *admission.Ledger) { a.Begin(&l.local.share) })
		l.local.noteFirstToken()
	}
	if c.Finish {
		l.local.noteFinish(c)
	}
	if c.HasPromptIDs() {
		work.SetInput(policies.Tokens(c.PromptTokens()))
		l.local.recordPrompt(c)
	}
	n := c.Tokens
	if c.HasText && !c.ListsIDs() {
		n = 1 // an engine without token ids; the final usage corrects it
		l.local.idsHidden.Store(true)
	}
	if n > 0 {
		work.AddOutput(n)
		l.local.recordOutput(c)
		l.local.server.brought.Add(uint64(n))
		l.local.server.engineFacts.noteChunk(n)
	}
	if u, ok := c.Usage(); ok {
		l.local.setUsage(u)
	}
}

// close ends the generation at its engine, for good, and makes a waiting next return. Any goroutine may call it, more
// than once.
func (l *wireLeg) close() { l.closeOnce(false) }

// closeMoved is close for a generation that another engine continues.
func (l *wireLeg) closeMoved() { l.closeOnce(true) }

func (l *wireLeg) closeOnce(moved bool) {
	if l.closed.Swap(true) {
		return
	}
	l.ahead.close()
	l.body.Close()
	l.call.cancel()
	if l.local != nil {
		l.local.unregister(moved)
	}
}

// abort ends the generation; next then fails with why.
func (l *wireLeg) abort(why error) { l.call.abort(why) }

// drainAndClose reads the end of a body whose last event was read, so that its
// connection can be reused, and closes it.
func (l *wireLeg) drainAndClose() {
	enough := time.AfterFunc(drainTimeout, func() { l.body.Close() })
	l.ahead.next(nil)
	enough.Stop()
	l.close()
}

// drainTimeout is how long an engine may take to end its body after [DONE].
const drainTimeout = 50 * time.Millisecond

// leave is closeMoved for a stream that goes on elsewhere. cached is how many prompt
// tokens it found in its engine's prefix cache, −1 for unknown.
func (l *wireLeg) leave(cached int) {
	if l.local != nil && cached >= 0 {
		l.local.work.SetCached(policies.Tokens(cached))
	}
	l.closeMoved()
}

// readToFirstToken reads a leg from its first event to its first token. ids is
// how many token ids it continues; 0 skips that check.
func readToFirstToken(leg *wireLeg, c *openai.Chunk, ids int) (*openai.Chunk, error) {
	for {
		if session.ReportsLoss(c) {
			return nil, session.ReportedLoss(c)
		}
		switch n := c.PromptTokens(); {
		case c.Failure() != nil:
			return nil, fmt.Errorf("the engine reports %s", c.Failure())
		case c.Done:
			return nil, errors.New("it ends before its first token")
		case ids > 0 && n > 0 && n != ids:
			return nil, fmt.Errorf("it continues %d token ids, not the %d that it was given", n, ids)
		case c.HasText && c.Tokens == 0:
			return nil, errors.New("it sends no token ids")
		case c.Tokens > 0 || c.Finish:
			return c, nil
		}
		var err error
		if c, err = leg.next(); err != nil {
			return nil, err
		}
	}
}

// idleBody is the body of an answer that is not parsed.
type idleBody struct {
	body  io.ReadCloser
	local *localLeg // whose answer it is; nil for none
	ahead readAhead
	seen  *prefixBuffer // keeps the beginning of the body; nil: it is not wanted
	rest  []byte        // unread part of the last piece
}

// newIdleBody returns an idleBody. local is the leg whose answer it is, nil for none.
func newIdleBody(body io.ReadCloser, idle time.Duration, c *call, local *localLeg) *idleBody {
	b := &idleBody{body: body, local: local}
	b.ahead.init(b, c, local, idle)
	return b
}

func (b *idleBody) Read(p []byte) (int, error) {
	if len(b.rest) == 0 {
		piece, direct, err := b.ahead.next(p)
		if direct || err != nil {
			return len(piece), err
		}
		b.rest = piece
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// readPiece reads a piece from the engine, and ends the leg at the end of the answer.
func (b *idleBody) readPiece(into []byte, _ bool) ([]byte, error) {
	n, err := b.body.Read(into)
	if b.seen != nil {
		b.seen.Write(into[:n])
	}
	if err == io.EOF && b.local != nil {
		b.local.endWhole(b.seen)
	}
	return into[:n], err
}

func (b *idleBody) detach() []byte { return make([]byte, 16<<10) }

func (b *idleBody) endAhead() { b.local.unregister(false) }

func (b *idleBody) Close() error {
	b.ahead.close()
	return b.body.Close()
}
