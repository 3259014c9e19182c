package stream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/cascadeinfer/cascade/migrator/stream/dialect"
	"github.com/cascadeinfer/cascade/policies"
)

// Stream is one client's answer, from its first token to its end. Its methods
// are safe for concurrent use.
type Stream struct {
	// Fixed once the stream has begun.
	id       string
	request  policies.Request // as it arrived
	endpoint dialect.Endpoint
	asked    dialect.Edit       // what the client did not ask for
	ctx      context.Context    // of the client's request
	cancel   context.CancelFunc // ends ctx
	// seen is where the front remembers the fingerprint of its engine, which
	// engines tell at the end of a stream only; nil when a peer's engine runs it.
	seen *atomic.Pointer[[]byte]

	mu       sync.Mutex
	out      sink
	leg      Leg
	identity dialect.Identity
	ids      []uint32 // the prompt's, then those the client has
	prompt   int      // how many of ids are the prompt's; 0 while unknown
	whole    bool     // every token so far came with its id
	clean    bool     // the client's text ends where its ids end
	hops     int      // legs taken over
	finished bool     // the client has the finish reason
	cut      *Cut     // nil while the stream flows
	ended    bool     // nothing may be written to the client any more
	complete bool     // the leg has sent [DONE]
}

func (f *Front) newStream(ctx context.Context, r policies.Request, e dialect.Endpoint, asked dialect.Edit, out sink, cancel context.CancelFunc) *Stream {
	f.mu.Lock()
	f.next++
	r.ID = string(f.cfg.Replica) + "/" + strconv.FormatUint(f.next, 10)
	f.mu.Unlock()
	whole := !r.Features.Has(policies.Choices | policies.Prompts | policies.Echo | policies.Unreadable)
	return &Stream{id: r.ID, request: r, endpoint: e, asked: asked, out: out, ctx: ctx, cancel: cancel, whole: whole}
}

// Endpoint returns the endpoint that the client called.
func (s *Stream) Endpoint() dialect.Endpoint { return s.endpoint }

// Request describes the stream as it is now; the counts are those that the
// client has.
func (s *Stream) Request() policies.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.request
	if s.prompt > 0 {
		r.Input, r.Estimated = policies.Tokens(s.prompt), false
		r.Output = policies.Tokens(len(s.ids) - s.prompt)
	}
	return r
}

// Hops returns how many times the stream has moved.
func (s *Stream) Hops() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hops
}

// start takes over the answer that has begun.
func (s *Stream) start(b begun, seen *atomic.Pointer[[]byte]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.peer == "" {
		s.seen = seen
	}
	s.leg = b.leg
	s.out.begin(b.header)
}

// pump relays events to the stream's end, on its handler's goroutine. The
// error is for a stream that an engine cut; the client has been told.
func (s *Stream) pump(leg Leg, c *dialect.Chunk) error {
	defer s.end()
	// The first leg may end with the request by itself; those that are spliced in
	// know nothing of the request.
	stop := context.AfterFunc(s.ctx, s.abandon)
	defer stop()
	var err error
	for {
		if err != nil && s.ctx.Err() != nil {
			err = context.Cause(s.ctx) // why the leg was cut
		}
		next, wait, ended, failure := s.step(leg, c, err)
		switch {
		case ended:
			return failure
		case wait != nil:
			// This leg is lost while another one may take over.
			<-wait
			continue
		case next != leg:
			leg = next
		}
		c, err = leg.Next()
	}
}

// abandon ends the stream's legs once the request's context has ended.
func (s *Stream) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.abandonLocked()
}

// abandonLocked closes the present leg, which the pump reads, and ends a cut.
// What was held back goes out first: when it is the front that stops, the
// client is there and is told afterwards.
func (s *Stream) abandonLocked() {
	if s.ended {
		return
	}
	s.leg.Close()
	if s.cut != nil {
		s.thawLocked(ErrEnded) // whether the client takes it makes no difference now
	}
}

// step takes in what leg brought. It returns the leg to read next, or a channel
// to wait on before the same step is tried again, or that the stream has ended.
func (s *Stream) step(leg Leg, c *dialect.Chunk, err error) (next Leg, wait <-chan struct{}, ended bool, failure error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
		return nil, nil, true, nil
	case s.leg != leg:
		return s.leg, nil, false, nil // another leg took over meanwhile
	case err != nil && s.cut != nil && s.cut.frozen:
		return leg, s.cut.over, false, nil
	case err != nil:
		return nil, nil, true, s.failLocked(err)
	}
	if s.cut != nil && s.cut.frozen {
		why := s.cut.hold(c)
		if why == nil {
			return leg, nil, false, nil
		}
		err = s.thawLocked(why) // a request that ends while it moves wins
	}
	if err == nil {
		err = s.deliverLocked(c)
	}
	if err != nil {
		return nil, nil, true, s.failLocked(err)
	}
	return leg, nil, s.ended, nil
}

// errClient wraps what went wrong between the front and its client: nobody is
// left to be told.
type errClient struct{ error }

// deliverLocked gives an event to the client.
func (s *Stream) deliverLocked(c *dialect.Chunk) error {
	if c.Done {
		s.ended, s.complete = true, true
		return s.out.done(c, s.ids[:s.prompt:s.prompt], s.ids[s.prompt:])
	}
	if s.hops > 0 && c.Tokens == 0 && !c.Finish && !c.UsageOnly() && c.Failed() == nil {
		return nil // a later leg's opening, or a comment in it
	}
	var err error
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
				return &malformed{err}
			}
			s.prompt = len(s.ids)
		}
	}
	if c.Tokens > 0 {
		if s.ids, err = c.AppendIDs(s.ids); err != nil {
			return &malformed{err}
		}
		// Text after one token ends where the token does; after several, the last
		// may have begun a character.
		s.clean = c.HasText && c.Tokens == 1
	} else if c.HasText {
		s.clean = true
		s.whole = s.whole && c.ListsIDs()
	}
	edit := s.asked
	if s.hops > 0 {
		edit.Pin, edit.NoPrompt = &s.identity, true
		edit.Totals = &dialect.Usage{Prompt: s.prompt, Output: len(s.ids) - s.prompt}
	}
	if err := s.out.take(c, edit); err != nil {
		return err
	}
	s.finished = s.finished || c.Finish
	switch {
	case s.cut == nil:
	case s.finished:
		return s.thawLocked(ErrEnded)
	case !s.whole || s.clean && s.prompt == 0:
		return s.thawLocked(ErrUncounted)
	case s.clean:
		s.cut.freezeLocked()
	}
	return nil
}

// failLocked ends the stream with an error event, or without one when it is the
// client that is gone. It returns the error unless that is so.
func (s *Stream) failLocked(err error) error {
	s.ended = true
	var client errClient
	if errors.As(err, &client) || errors.Is(err, context.Canceled) {
		return nil
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	s.out.fail(gone(err))
	return err
}

// end releases what the stream holds. The handler returns after it, so nothing
// may be written to the client any more.
func (s *Stream) end() {
	s.mu.Lock()
	s.ended = true
	if s.cut != nil {
		s.cut.endLocked(ErrEnded)
	}
	leg, complete := s.leg, s.complete
	s.mu.Unlock()
	if l, ok := leg.(*wireLeg); ok && complete {
		l.finish()
	} else {
		leg.Close()
	}
	s.out.close()
	s.cancel()
}
