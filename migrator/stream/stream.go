package stream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/cascadeinfer/cascade/migrator/stream/dialect"
	"github.com/cascadeinfer/cascade/migrator/token"
	"github.com/cascadeinfer/cascade/policies"
)

// maxHeld bounds, in bytes, what is held back of one stream while it moves.
const maxHeld = 4 << 20

// Stream is one client's request, from its placement to its end. Its methods
// are safe for concurrent use.
//
// One goroutine, the pump, reads the present leg and writes to the client.
// Others may only put another leg in its place, under mu; nobody writes to a
// client with mu held, so that a client that reads slowly holds up nobody.
type Stream struct {
	// Fixed once the stream has begun.
	front    *Front
	id       string
	request  policies.Request // as it arrived
	least    policies.Tokens  // min_tokens
	endpoint dialect.Endpoint
	asked    dialect.Edit // what the client did not ask for
	header   http.Header  // the client's
	resume   dialect.Resume
	ctx      context.Context    // of the client's request
	cancel   context.CancelFunc // ends ctx
	// seen is where the front remembers the fingerprint of its engine, which
	// engines tell at the end of a stream only; nil when a peer's engine runs it.
	seen *atomic.Pointer[[]byte]

	// The pump's.
	out      sink
	identity dialect.Identity
	held     []*dialect.Chunk // came while the stream was frozen; before all later ones
	heldSize int
	again    int  // tokens without text that the client has already and that come again
	doomed   bool // no other leg was found: what the present one says stands
	totals   dialect.Usage

	// Written by the pump or a splice, under mu.
	mu       sync.Mutex
	leg      Leg
	first    *dialect.Chunk     // of leg, to be taken before its next ones; nil once it was
	holder   policies.ReplicaID // who runs leg
	epoch    policies.Epoch     // grows with every attempt to change the holder
	trying   policies.ReplicaID // a leg is being opened there; "" for no peer
	link     *link              // of that leg; nil for none
	cut      *cut               // nil while no move is under way
	rescuing bool               // another leg is looked for
	ids      []uint32           // the prompt's, then those the client has
	prompt   int                // how many of ids are the prompt's; 0 while unknown
	hash     token.Hash         // of ids[:hashed]
	hashed   int
	wholeAt  int  // ids at the last text that the client has got
	sure     bool // that text ended with a character
	whole    bool // every token so far came with its id
	clean    bool // the client's text ends where its ids end
	cached   int  // prompt tokens that the first leg had in a cache, −1 for unknown
	hops     int  // legs taken over
	finished bool // the client has the finish reason
	ended    bool // nothing may be written to the client any more
	complete bool // the leg has sent [DONE]
}

func (f *Front) newStream(ctx context.Context, r policies.Request, e dialect.Endpoint, asked dialect.Edit, out sink, cancel context.CancelFunc) *Stream {
	f.mu.Lock()
	f.next++
	r.ID = string(f.cfg.Replica) + "/" + strconv.FormatUint(f.next, 10)
	f.mu.Unlock()
	whole := !r.Features.Has(policies.Choices | policies.Prompts | policies.Echo | policies.Unreadable)
	return &Stream{front: f, id: r.ID, request: r, endpoint: e, asked: asked, out: out, ctx: ctx, cancel: cancel,
		whole: whole, holder: f.cfg.Replica, epoch: 1, cached: -1}
}

// Endpoint returns the endpoint that the client called.
func (s *Stream) Endpoint() dialect.Endpoint { return s.endpoint }

// Request describes the stream as it is now; the counts are those that the
// client has.
func (s *Stream) Request() policies.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requestLocked()
}

func (s *Stream) requestLocked() policies.Request {
	r := s.request
	if s.prompt > 0 {
		r.Input, r.Estimated = policies.Tokens(s.prompt), false
		r.Output = policies.Tokens(len(s.ids) - s.prompt)
	}
	r.Features = after(r.Features, s.least, r.Output)
	if !s.whole {
		r.Features |= policies.HiddenTokens
	}
	return r
}

// Hops returns how many times the stream has moved.
func (s *Stream) Hops() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hops
}

func (s *Stream) holding() Holding {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Holding{Replica: s.holder, Epoch: s.epoch, Pending: s.cut != nil || s.rescuing}
}

// tries takes note of a leg that is being opened at a peer, or nowhere.
func (s *Stream) tries(at policies.ReplicaID, l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trying, s.link = at, l
}

// start takes over the answer that has begun.
func (s *Stream) start(b begun, seen *atomic.Pointer[[]byte]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.to.Address == "" {
		s.seen = seen
	} else {
		s.holder = b.to.Replica
	}
	s.leg, s.trying, s.link = b.leg, "", nil
	s.out.begin(b.header)
}

// What ends a round of the pump.
var (
	errOver  = errors.New("internal error: the end of a stream got out of its pump")
	errMoved = errors.New("internal error: a new leg got out of its pump")
)

// pump relays events to the stream's end, on its handler's goroutine. The
// error is for a stream that an engine cut; the client has been told.
func (s *Stream) pump(leg Leg, c *dialect.Chunk) error {
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
		s.cut.endLocked(ErrUnknown)
	}
}

// take takes in what leg brought: it goes to the client, or is held back while
// the stream is frozen.
func (s *Stream) take(leg Leg, c *dialect.Chunk) error {
	if failed := c.Failed(); failed != nil && !s.doomed && dialect.FailureStatus(failed) >= http.StatusInternalServerError {
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
func (s *Stream) holdLocked(c *dialect.Chunk) error {
	switch {
	case c.Finish || c.Done || c.Failed() != nil:
		return ErrUnknown
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
func (s *Stream) deliver(c *dialect.Chunk) error {
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
func (s *Stream) bookLocked(c *dialect.Chunk) (edit dialect.Edit, shown bool, err error) {
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
		s.totals = dialect.Usage{Prompt: s.prompt, Output: len(s.ids) - s.prompt, Cached: s.cached}
		edit.Pin, edit.NoPrompt, edit.Totals = &s.identity, true, &s.totals
	}
	s.finished = s.finished || c.Finish
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
type reported struct{ chunk *dialect.Chunk }

func (r *reported) Error() string { return "the engine reports " + string(r.chunk.Failed()) }

// after finds out how a stream goes on whose leg cannot be read: with another
// leg and its first event, or not at all; the chunk is then nil.
func (s *Stream) after(leg Leg, err error) (Leg, *dialect.Chunk, error) {
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
			s.cut.endLocked(ErrUnknown)
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
		if isLoss(err) && s.rescue(leg, err) {
			continue
		}
		if s.ctx.Err() != nil && !isClient(err) {
			err = context.Cause(s.ctx) // which was meanwhile
		}
		if r, ok := err.(*reported); ok && !s.doomed {
			s.doomed = true
			if err = s.take(leg, r.chunk); err == nil {
				var c *dialect.Chunk
				if c, err = leg.Next(); err == nil {
					return leg, c, nil
				}
			}
			continue
		}
		return nil, nil, s.fail(err)
	}
}

// isLoss reports whether a leg's error says that its engine is lost, and not
// that the client is, or that the engine talks nonsense.
func isLoss(err error) bool {
	var bad *malformed
	return !isClient(err) && !errors.As(err, &bad) && !errors.Is(err, dialect.ErrEventTooLarge) && err != errOver && err != errMoved
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
	s.out.fail(gone(err))
	return err
}

// end releases what the stream holds. The handler returns after it, so nothing
// may be written to the client any more.
func (s *Stream) end() {
	s.mu.Lock()
	s.ended = true
	if s.cut != nil {
		s.cut.endLocked(ErrUnknown)
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

// backLocked takes back the ids after the last text, so that another leg can
// generate theirs as one. The client has nothing of them, unless it sees ids.
func (s *Stream) backLocked() {
	if s.clean || !s.asked.NoIDs || s.wholeAt == len(s.ids) {
		return
	}
	s.again += len(s.ids) - s.wholeAt
	s.clean = s.sure
	s.ids = slices.Clip(s.ids[:s.wholeAt])
	if s.hashed > s.wholeAt {
		s.hash, s.hashed = 0, 0
	}
}
