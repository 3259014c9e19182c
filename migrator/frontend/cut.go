package frontend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
)

// Why a stream goes on where it was.
var (
	errNotBegun  = errors.New("the stream has no token yet")
	errOverrun   = errors.New("the present holder sent more tokens than are moved")
	errShort     = errors.New("the present holder's tokens do not arrive")
	errHash      = errors.New("the stream's token ids are not those that are moved")
	errUncounted = errors.New("the stream's token ids are not known")
	errHeld      = errors.New("too much was held back")
	errLost      = errors.New("the present holder was lost")
)

// cut is a move of a stream, from its claim to its end. It may freeze the
// stream: the client then has exactly ids, and what the present leg still
// generates is held back. It ends by a splice, by end, or with the stream.
type cut struct {
	stream *Stream
	length int           // freeze at exactly so many ids; 0: where the text is whole
	ready  chan struct{} // closed when frozen
	over   chan struct{} // closed when the cut has ended

	// Guarded by stream.mu.
	wanted bool // freeze as soon as may be
	frozen bool
	hurry  context.CancelFunc // ends what needs not be done once frozen; nil for nothing
	ids    []uint32           // never change and must not be changed
	prompt int                // how many of them are the prompt's
	began  time.Time
	err    error // why it ended; nil for a splice
	moved  MigrationResult
}

// claim begins a move, if the stream is where the move says. Nothing else moves
// the stream until the cut has ended.
func (s *Stream) claim(m Migration) (*cut, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended || s.finished || s.ctx.Err() != nil:
		return nil, ErrNoStream
	case s.holder != m.From || s.epoch != m.Epoch || s.cut != nil || s.rescuing:
		return nil, ErrStaleEpoch
	case s.leg == nil:
		return nil, errNotBegun
	}
	if why := policies.Movable(s.requestLocked()); why != policies.NotPinned {
		return nil, fmt.Errorf("the stream cannot move: %v", why)
	}
	if s.prompt == 0 || len(s.ids) == s.prompt {
		return nil, errNotBegun
	}
	s.cut = &cut{stream: s, length: m.Length, ready: make(chan struct{}), over: make(chan struct{})}
	if m.Reservation == "" {
		s.cut.length = 0
	}
	return s.cut, nil
}

// want makes the cut freeze the stream as soon as may be.
func (c *cut) want() {
	c.stream.mu.Lock()
	defer c.stream.mu.Unlock()
	if c.stream.cut != c {
		return
	}
	c.wanted = true
	c.bookedLocked()
}

// bookedLocked looks at what the client has by now.
func (c *cut) bookedLocked() {
	switch s := c.stream; {
	case s.finished:
		c.endLocked(ErrNoStream) // a request that ends while it moves wins
	case !s.whole:
		c.endLocked(errUncounted)
	case c.frozen || !c.wanted:
	case c.length == 0 && s.clean, c.length == len(s.ids):
		c.freezeLocked()
	case c.length > 0 && len(s.ids) > c.length:
		c.endLocked(errOverrun)
	}
}

func (c *cut) freezeLocked() {
	s := c.stream
	c.frozen, c.began = true, time.Now()
	c.ids, c.prompt = s.ids[:len(s.ids):len(s.ids)], s.prompt
	if c.hurry != nil {
		c.hurry()
	}
	close(c.ready)
}

// waits reports whether the client waits for the other leg.
func (c *cut) waits() bool {
	c.stream.mu.Lock()
	defer c.stream.mu.Unlock()
	return c.frozen && c.stream.cut == c
}

// survivesLocked reports whether the move can go on without the present leg: it
// has all ids that it needs.
func (c *cut) survivesLocked() bool {
	if !c.frozen && c.length == 0 && c.stream.clean {
		c.freezeLocked()
	}
	return c.frozen
}

// endLocked takes the cut off its stream, which goes on with the present leg
// unless err is nil.
func (c *cut) endLocked(err error) {
	if c.stream.cut != c {
		return
	}
	s := c.stream
	if s.cut = nil; err != nil {
		s.epoch += 2 // the one between was the new leg's
	} else {
		c.moved.Stall = time.Since(c.began)
	}
	c.err, c.moved.Epoch = err, s.epoch
	close(c.over)
}

// end ends the cut if nothing else has, and tells how it ended.
func (c *cut) end(err error) (MigrationResult, error) {
	c.stream.mu.Lock()
	defer c.stream.mu.Unlock()
	if c.stream.ctx.Err() != nil {
		c.stream.abandonLocked() // which may not have run by itself yet
	}
	c.endLocked(err)
	if c.err == ErrNoStream {
		return MigrationResult{}, ErrNoStream
	}
	return c.moved, c.err
}

// splice makes the stream go on with leg, which runs at a replica and whose
// first token is the one after ids. What was held back is dropped. When the cut
// has ended already, leg is closed.
func (c *cut) splice(leg Leg, first *openai.Chunk, at policies.ReplicaID, cached int) {
	s := c.stream
	s.mu.Lock()
	if s.ctx.Err() != nil {
		s.abandonLocked() // which may not have run by itself yet
	}
	if s.cut != c {
		s.mu.Unlock()
		leave(leg)
		return
	}
	if s.hops == 0 {
		s.cached = cached
	}
	former := s.replaceLocked(leg, first, at)
	s.epoch++
	c.endLocked(nil)
	s.mu.Unlock()
	former(cached)
}

// replaceLocked makes leg the stream's. It returns what ends the former one,
// which wakes the pump; the number is as in Move.Cached.
func (s *Stream) replaceLocked(leg Leg, first *openai.Chunk, at policies.ReplicaID) (former func(cached int)) {
	old := s.leg
	s.leg, s.first, s.holder = leg, first, at
	s.hops++
	return func(cached int) {
		if l, ok := old.(*wireLeg); ok && l.home != nil && cached >= 0 {
			l.home.work.Cached(policies.Tokens(cached))
		}
		leave(old)
	}
}

// leave closes a leg whose stream goes on elsewhere.
func leave(leg Leg) {
	if l, ok := leg.(*wireLeg); ok {
		l.leave()
		return
	}
	leg.Close()
}

// opening reads a leg on, from its first event to its first token. ids is how
// many token ids it goes on from; 0 does not check that.
func opening(leg Leg, c *openai.Chunk, ids int) (*openai.Chunk, error) {
	for {
		switch n := c.PromptTokens(); {
		case c.Failed() != nil:
			return nil, fmt.Errorf("the engine reports %s", c.Failed())
		case c.Done:
			return nil, errors.New("it ends before it begins")
		case ids > 0 && n > 0 && n != ids:
			return nil, fmt.Errorf("it goes on from %d token ids and was given %d", n, ids)
		case c.HasText && c.Tokens == 0:
			return nil, errors.New("it does not tell its token ids")
		case c.Tokens > 0 || c.Finish:
			return c, nil
		}
		var err error
		if c, err = leg.Next(); err != nil {
			return nil, err
		}
	}
}

// wait waits until the cut has frozen the stream.
func (c *cut) wait(ctx context.Context) error {
	select {
	case <-c.ready:
		return nil
	case <-c.over:
		return c.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
