package frontend

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/migrator/internal/tokenhash"
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
	front    *Server
	id       string
	request  policies.Request // as it arrived
	least    policies.Tokens  // min_tokens
	endpoint openai.Endpoint
	asked    openai.Edit // what the client did not ask for
	header   http.Header // the client's
	resume   openai.Resume
	ctx      context.Context    // of the client's request
	cancel   context.CancelFunc // ends ctx
	// seen is where the front remembers the fingerprint of its engine, which
	// engines tell at the end of a stream only; nil when a peer's engine runs it.
	seen *atomic.Pointer[[]byte]

	// The pump's.
	out      sink
	identity openai.Identity
	held     []*openai.Chunk // came while the stream was frozen; before all later ones
	heldSize int
	again    int  // tokens without text that the client has already and that come again
	doomed   bool // no other leg was found: what the present one says stands
	totals   openai.Usage

	// Written by the pump or a splice, under mu.
	mu       sync.Mutex
	leg      Leg
	first    *openai.Chunk      // of leg, to be taken before its next ones; nil once it was
	holder   policies.ReplicaID // who runs leg
	epoch    policies.Epoch     // grows with every attempt to change the holder
	trying   policies.ReplicaID // a leg is being opened there; "" for no peer
	link     *link              // of that leg; nil for none
	cut      *cut               // nil while no move is under way
	rescuing bool               // another leg is looked for
	ids      []uint32           // the prompt's, then those the client has
	prompt   int                // how many of ids are the prompt's; 0 while unknown
	hash     tokenhash.Hash     // of ids[:hashed]
	hashed   int
	wholeAt  int  // ids at the last text that the client has got
	sure     bool // that text ended with a character
	whole    bool // every token so far came with its id
	clean    bool // the client's text ends where its ids end
	cached   int  // prompt tokens that the first leg had in a cache, −1 for unknown
	hops     int  // legs taken over
	losses   int  // engines lost without getting further
	lastLoss int  // how many ids there were at the last one
	finished bool // the client has the finish reason
	counted  bool // and the usage after it
	ended    bool // nothing may be written to the client any more
	complete bool // the leg has sent [DONE]
}

func (f *Server) newStream(ctx context.Context, r policies.Request, e openai.Endpoint, asked openai.Edit, out sink, cancel context.CancelFunc) *Stream {
	f.mu.Lock()
	f.next++
	r.ID = string(f.cfg.Replica) + "/" + strconv.FormatUint(f.next, 10)
	f.mu.Unlock()
	whole := !r.Features.Has(policies.Choices | policies.Prompts | policies.Echo | policies.Unreadable)
	return &Stream{front: f, id: r.ID, request: r, endpoint: e, asked: asked, out: out, ctx: ctx, cancel: cancel,
		whole: whole, holder: f.cfg.Replica, epoch: 1, cached: -1}
}

// Endpoint returns the endpoint that the client called.
func (s *Stream) Endpoint() openai.Endpoint { return s.endpoint }

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
	r.Features = featuresAfter(r.Features, s.least, r.Output)
	if !s.whole {
		r.Features |= policies.HiddenTokens
	}
	return r
}

// Splices returns how many times the stream has moved.
func (s *Stream) Splices() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hops
}

func (s *Stream) holding() Holder {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Holder{Replica: s.holder, Epoch: s.epoch, Pending: s.cut != nil || s.rescuing}
}

// tries takes note of a leg that is being opened at a peer, or nowhere.
func (s *Stream) tries(at policies.ReplicaID, l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trying, s.link = at, l
}

// tried takes that back, unless another leg is being opened by now.
func (s *Stream) tried(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == l {
		s.trying, s.link = "", nil
	}
}

// start takes over the answer that has begun.
func (s *Stream) start(b openedLeg, seen *atomic.Pointer[[]byte]) {
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

// end releases what the stream holds. The handler returns after it, so nothing
// may be written to the client any more.
func (s *Stream) end() {
	s.mu.Lock()
	s.ended = true
	if s.cut != nil {
		s.cut.endLocked(ErrNoStream)
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
