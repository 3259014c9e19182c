package frontend

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
)

// What ends a round of the pump.
var (
	errOver  = errors.New("internal error: the end of a stream got out of its pump")
	errMoved = errors.New("internal error: a new leg got out of its pump")
)

// pump relays events to the stream's end, on its handler's goroutine. The
// error is for a stream that an engine cut; the client has been told.
func (s *Stream) pump(leg Leg, c *openai.Chunk) error {
	defer s.end()
	stop := context.AfterFunc(s.ctx, s.abandon)
	defer stop()
	for {
		err := s.take(leg, c)
		if err == nil {
			if c, err = leg.Next(); err == nil {
				continue
			}
		}
		if leg, c, err = s.after(leg, err); c == nil {
			return err
		}
	}
}

// abandon ends the stream's legs once the request's context has ended.
func (s *Stream) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.abandonLocked()
}

// abandonLocked closes the present leg, which the pump reads, and ends a move.
func (s *Stream) abandonLocked() {
	if s.ended {
		return
	}
	s.leg.Close()
	if s.cut != nil {
		s.cut.endLocked(ErrNoStream)
	}
}

// take takes in what leg brought: it goes to the client, or is held back while
// the stream is frozen.
func (s *Stream) take(leg Leg, c *openai.Chunk) error {
	if failed := c.Failed(); failed != nil && !s.doomed && openai.FailureStatus(failed) >= http.StatusInternalServerError {
		return &reported{c.Clone()}
	}
	s.mu.Lock()
	if err := s.changedLocked(leg); err != nil {
		s.mu.Unlock()
		return err
	}
	if s.cut != nil && s.cut.frozen {
		if why := s.holdLocked(c); why == nil {
			s.mu.Unlock()
			return nil
		} else {
			s.cut.endLocked(why)
		}
	}
	if len(s.held) > 0 {
		s.held = append(s.held, c.Clone())
		s.mu.Unlock()
		return s.drain(leg)
	}
	return s.deliver(c)
}

// changedLocked reports whether leg is not the one to read any more.
func (s *Stream) changedLocked(leg Leg) error {
	switch {
	case s.ended:
		return errOver
	case s.leg != leg:
		return errMoved
	}
	return nil
}

// holdLocked keeps an event back. Its error says why it must not wait: the
// stream's end, too much, or a token after those that a live move has counted.
func (s *Stream) holdLocked(c *openai.Chunk) error {
	switch {
	case c.Finish || c.Done || c.Failed() != nil:
		return ErrNoStream
	case s.cut.length > 0 && (c.Tokens > 0 || c.HasText):
		return errOverrun
	case s.heldSize+len(c.Raw()) > maxHeld:
		return errHeld
	}
	s.held = append(s.held, c.Clone())
	s.heldSize += len(c.Raw())
	return nil
}

// drain delivers what was held back, as long as the stream flows.
func (s *Stream) drain(leg Leg) error {
	for len(s.held) > 0 {
		s.mu.Lock()
		err := s.changedLocked(leg)
		if err != nil || s.cut != nil && s.cut.frozen {
			s.mu.Unlock()
			return err
		}
		c := s.held[0]
		s.held = s.held[1:]
		s.heldSize -= len(c.Raw())
		if err := s.deliver(c); err != nil {
			return err
		}
	}
	s.held, s.heldSize = nil, 0
	return nil
}

// errClient wraps what went wrong between the front and its client: nobody is
// left to be told.
type errClient struct{ error }

// deliver books an event and gives it to the client. It is called with mu held
// and returns without it.
func (s *Stream) deliver(c *openai.Chunk) error {
	if c.Done {
		s.ended, s.complete = true, true
		s.mu.Unlock()
		if err := s.out.done(c, s.ids[:s.prompt:s.prompt], s.ids[s.prompt:]); err != nil {
			return err
		}
		return errOver
	}
	edit, shown, err := s.bookLocked(c)
	s.mu.Unlock()
	if err == nil && shown {
		err = s.out.take(c, edit)
	}
	return err
}

// bookLocked takes an event into the stream's state. It returns what to change
// about it for the client, and whether the client is to see it.
func (s *Stream) bookLocked(c *openai.Chunk) (edit openai.Edit, shown bool, err error) {
	if s.hops > 0 && c.Tokens == 0 && !c.Finish && !c.UsageOnly() && c.Failed() == nil {
		return edit, false, nil // a later leg's opening, or a comment in it
	}
	if s.hops == 0 {
		if s.identity.ID == nil {
			s.identity = c.Identity()
		}
		if f := c.Fingerprint(); f != nil && s.seen != nil {
			if known := s.seen.Load(); known == nil || !bytes.Equal(*known, f) {
				kept := bytes.Clone(f)
				s.seen.Store(&kept)
			}
		}
		if s.prompt == 0 && c.HasPrompt() {
			if s.ids, err = c.AppendPromptIDs(s.ids); err != nil {
				return edit, false, &malformed{err}
			}
			s.prompt, s.wholeAt, s.sure = len(s.ids), len(s.ids), true
		}
	}
	shown = true
	if c.Tokens > 0 {
		s.hashLocked() // of the tokens before: the client need not wait for a prompt's hash
		if s.ids, err = c.AppendIDs(s.ids); err != nil {
			return edit, false, &malformed{err}
		}
		// Text after one token ends where the token does; after several, the last
		// may have begun a character.
		if s.clean = c.HasText && c.Tokens == 1; c.HasText {
			s.wholeAt, s.sure = len(s.ids), s.clean
		}
		shown = s.again == 0 || c.HasText || c.Finish
		if s.again = max(s.again-c.Tokens, 0); c.HasText {
			s.again = 0
		}
	} else if c.HasText {
		s.clean = true
		s.wholeAt, s.sure = len(s.ids), true
		s.whole = s.whole && c.ListsIDs()
	}
	edit = s.asked
	if s.hops > 0 {
		s.totals = openai.Usage{Prompt: s.prompt, Output: len(s.ids) - s.prompt, Cached: s.cached}
		edit.Pin, edit.NoPrompt, edit.Totals = &s.identity, true, &s.totals
	}
	s.finished, s.counted = s.finished || c.Finish, s.counted || c.UsageOnly()
	if s.cut != nil {
		s.cut.bookedLocked()
	}
	return edit, shown, nil
}

// hashLocked brings the hash up to the present ids.
func (s *Stream) hashLocked() {
	s.hash, s.hashed = s.hash.Add(s.ids[s.hashed:]...), len(s.ids)
}

// reported is the loss of a leg whose engine could say so.
type reported struct{ chunk *openai.Chunk }

func (r *reported) Error() string { return "the engine reports " + string(r.chunk.Failed()) }

// after finds out how a stream goes on whose leg cannot be read: with another
// leg and its first event, or not at all; the chunk is then nil.
func (s *Stream) after(leg Leg, err error) (Leg, *openai.Chunk, error) {
	for {
		over := false
		var wait <-chan struct{}
		s.mu.Lock()
		next, first := s.leg, s.first
		switch {
		case s.ended:
			over = true
		case next != leg:
			s.first, s.held, s.heldSize = nil, nil, 0
			s.pinLocked()
		case s.cut == nil:
		case s.ctx.Err() != nil || isClient(err):
			s.cut.endLocked(ErrNoStream)
		case s.cut.survivesLocked():
			wait = s.cut.over // another leg may take over
		default:
			s.cut.endLocked(errLost)
		}
		s.mu.Unlock()
		switch {
		case over:
			return nil, nil, nil
		case next != leg:
			return next, first, nil
		case wait != nil:
			<-wait
			continue
		}
		if s.ctx.Err() != nil && !isClient(err) {
			err = context.Cause(s.ctx) // why the leg was cut
		}
		if !isClient(err) {
			if ended := s.drain(leg); ended != nil {
				err = ended
				continue
			}
		}
		if isLoss(err) {
			if over, err := s.conclude(leg, err); over {
				return nil, nil, err
			}
			if s.rescue(leg, err) {
				continue
			}
		}
		if s.ctx.Err() != nil && !isClient(err) {
			err = context.Cause(s.ctx) // which was meanwhile
		}
		if r, ok := err.(*reported); ok && !s.doomed {
			s.doomed = true
			if err = s.take(leg, r.chunk); err == nil {
				var c *openai.Chunk
				if c, err = leg.Next(); err == nil {
					return leg, c, nil
				}
			}
			continue
		}
		return nil, nil, s.fail(err)
	}
}

// conclude ends a stream whose engine was lost after the finish reason: the client
// has all the text, and the front knows what follows it. It reports false where the
// client has not, or the front does not. The error is the client's connection's.
func (s *Stream) conclude(lost Leg, cause error) (over bool, err error) {
	s.mu.Lock()
	if s.leg != lost || s.ended || s.cut != nil || s.ctx.Err() != nil ||
		!s.finished || s.prompt == 0 || !s.whole || s.identity.ID == nil {
		s.mu.Unlock()
		return false, nil
	}
	s.ended = true
	s.pinLocked()
	usage, end := openai.Ending(s.endpoint, s.identity, openai.Usage{Prompt: s.prompt, Output: len(s.ids) - s.prompt, Cached: s.cached})
	counted, own := s.counted, s.holder == s.front.cfg.Replica
	s.mu.Unlock()
	if own {
		s.front.probeNow()
	}
	s.front.log.Warn("a stream lost its engine after its last token; the front ends it", "stream", s.id, "error", cause)
	if !counted {
		err = s.out.take(usage, s.asked)
	}
	if err == nil {
		err = s.out.done(end, s.ids[:s.prompt:s.prompt], s.ids[s.prompt:])
	}
	if isClient(err) {
		err = nil // it is gone: nobody is left to be told
	}
	return true, err
}

// isLoss reports whether a leg's error says that its engine is lost, and not
// that the client is, or that the engine talks nonsense.
func isLoss(err error) bool {
	var bad *malformed
	return !isClient(err) && !errors.As(err, &bad) && !errors.Is(err, openai.ErrEventTooLarge) && err != errOver && err != errMoved
}

// pinLocked fixes what the first leg's engine calls itself.
func (s *Stream) pinLocked() {
	if s.seen == nil || s.identity.Fingerprint != nil {
		return
	}
	if known := s.seen.Load(); known != nil {
		s.identity.Fingerprint = *known
	}
}

func isClient(err error) bool {
	var client errClient
	return errors.As(err, &client)
}

// fail ends the stream with an error event, or without one when it is the
// client that is gone. It returns the error unless that is so.
func (s *Stream) fail(err error) error {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	if isClient(err) || errors.Is(err, context.Canceled) {
		return nil
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	s.out.fail(engineLostProblem(err))
	return err
}
