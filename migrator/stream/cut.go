package stream

import (
	"context"
	"errors"
	"fmt"

	"github.com/cascadeinfer/cascade/migrator/stream/dialect"
)

// What Cut and Splice return when a stream cannot be moved now.
var (
	// ErrEnded says that the stream has ended, or ended while it was cut.
	ErrEnded = errors.New("the stream has ended")
	// ErrBusy says that the stream is cut by someone else.
	ErrBusy = errors.New("the stream is being moved already")
	// ErrUncounted says that the front does not know every token id of the stream.
	ErrUncounted = errors.New("the stream's token ids are not known")
	// ErrAborted says that the cut was aborted, by its owner or because too much
	// was held back.
	ErrAborted = errors.New("the cut was aborted")
)

// Cut is a stream held still for a move: the client has exactly IDs, and what
// the present leg still generates is held back. It ends by Splice, by Abort,
// with its context, or with the stream. Its methods are safe for concurrent
// use; one Splice at a time.
type Cut struct {
	// IDs are the prompt's token ids and those the client has. They never change
	// and must not be changed.
	IDs []uint32
	// Prompt is how many of IDs are the prompt's.
	Prompt int

	stream *Stream
	ready  chan struct{} // closed when frozen
	over   chan struct{} // closed when the cut has ended
	stop   func() bool   // ends the watch on the context

	// Guarded by stream.mu.
	frozen bool
	held   []*dialect.Chunk
	size   int // bytes held
	leg    Leg // the one that Splice waits for
	err    error
}

// Cut freezes the stream for its client, at the first token from now on after
// which the client's text is whole (a token may end inside a character). It
// waits for that token, and fails with ErrEnded, ErrBusy, ErrUncounted or
// ctx's error. The cut is aborted when ctx ends: give it the time that a move
// may take.
func (s *Stream) Cut(ctx context.Context) (*Cut, error) {
	c := &Cut{stream: s, ready: make(chan struct{}), over: make(chan struct{})}
	s.mu.Lock()
	var err error
	switch {
	case s.ended || s.finished || s.ctx.Err() != nil:
		err = ErrEnded
	case s.cut != nil:
		err = ErrBusy
	case !s.whole || s.clean && s.prompt == 0:
		err = ErrUncounted
	}
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	s.cut = c
	c.stop = context.AfterFunc(ctx, c.Abort)
	if s.clean {
		c.freezeLocked()
	}
	s.mu.Unlock()
	select {
	case <-c.ready:
		return c, nil
	case <-c.over:
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, c.err
	}
}

func (c *Cut) freezeLocked() {
	if c.frozen {
		return
	}
	s := c.stream
	c.frozen = true
	c.IDs, c.Prompt = s.ids[:len(s.ids):len(s.ids)], s.prompt
	close(c.ready)
}

// hold keeps an event back. Its error says why one must not wait: ErrEnded for
// the stream's end, ErrAborted when more than may be held would be.
func (c *Cut) hold(chunk *dialect.Chunk) error {
	switch {
	case chunk.Finish || chunk.Done || chunk.Failed() != nil:
		return ErrEnded
	case c.size+len(chunk.Raw()) > maxHeld:
		return ErrAborted
	}
	c.held = append(c.held, chunk.Clone())
	c.size += len(chunk.Raw())
	return nil
}

// endLocked takes the cut off its stream; nothing that is held is delivered.
func (c *Cut) endLocked(err error) {
	c.stop()
	c.stream.cut, c.held, c.err = nil, nil, err
	if c.leg != nil {
		c.leg.Close()
	}
	close(c.over)
}

// thawLocked ends the cut and delivers what was held back.
func (s *Stream) thawLocked(why error) error {
	held := s.cut.held
	s.cut.endLocked(why)
	for _, c := range held {
		if err := s.deliverLocked(c); err != nil {
			return err
		}
	}
	return nil
}

// Abort delivers what was held back, and the stream goes on with its present
// leg. It does nothing once the cut has ended.
func (c *Cut) Abort() {
	s := c.stream
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut != c {
		return
	}
	if err := s.thawLocked(ErrAborted); err != nil {
		s.cancel() // the client is gone; the handler finds out from its leg
	}
}

// Splice makes the stream go on with leg, whose first token must be the one
// after IDs. It waits for that token; then leg belongs to the stream, what was
// held back is dropped, and the former leg is closed. On any error leg is
// closed and the stream goes on as if it had not been cut: ErrEnded when the
// stream or its client's request ended first, ErrAborted when the cut did, or leg's own.
func (c *Cut) Splice(leg Leg) error {
	s := c.stream
	s.mu.Lock()
	if s.ctx.Err() != nil {
		s.abandonLocked() // which may not have run by itself yet
	}
	if s.cut != c {
		s.mu.Unlock()
		leg.Close()
		return c.err
	}
	c.leg = leg // from here on, the cut's end ends the leg
	s.mu.Unlock()

	first, err := opening(leg)

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		s.abandonLocked()
	}
	if s.cut != c {
		return c.err
	}
	if err != nil {
		if thaw := s.thawLocked(ErrAborted); thaw != nil {
			s.cancel()
		}
		return fmt.Errorf("the new leg gives no token: %w", err)
	}
	former := s.leg
	s.leg, c.leg = leg, nil
	s.hops++
	if s.seen != nil && s.identity.Fingerprint == nil {
		if known := s.seen.Load(); known != nil {
			s.identity.Fingerprint = *known
		}
	}
	c.endLocked(nil)
	if err := s.deliverLocked(first); err != nil {
		s.cancel()
	}
	former.Close()
	return nil
}

// opening reads a leg up to its first token.
func opening(leg Leg) (*dialect.Chunk, error) {
	for {
		c, err := leg.Next()
		switch {
		case err != nil:
			return nil, err
		case c.Failed() != nil:
			return nil, fmt.Errorf("the engine reports %s", c.Failed())
		case c.Done:
			return nil, errors.New("it ends before it begins")
		case c.Tokens > 0 || c.Finish:
			return c, nil
		}
	}
}
