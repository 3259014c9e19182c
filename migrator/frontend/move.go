package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/cascadeinfer/cascade/migrator/internal/loadtracker"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/migrator/internal/tokenhash"
	"github.com/cascadeinfer/cascade/policies"
)

const (
	catchUp     = 2 * time.Second // for the tokens of a live move to reach the front
	warmAbove   = 512             // token ids that are computed before the stream is stopped for them
	warmTimeout = time.Minute
	maxExcerpt  = 512 // bytes of an engine's refusal that are worth a line of log
)

// What Move returns, beside errors after which the stream goes on at From.
var (
	// ErrNoStream says that there is no such stream, or that it is over: nobody
	// wants its tokens any more.
	ErrNoStream = errors.New("no such stream, or it is over")
	// ErrStaleEpoch says that the stream is not at that holder in that epoch, or that
	// a move of it is under way.
	ErrStaleEpoch = errors.New("the stream is not at that holder in that epoch")
)

// Migration asks for a stream to go on at another replica.
type Migration struct {
	Stream string             // its Request's ID
	From   policies.ReplicaID // who holds it
	Epoch  policies.Epoch     // in which epoch
	To     Target
	// Reservation names the reservation at To that holds the stream's KV; "" means that
	// To is given all token ids and computes it anew.
	Reservation string
	// Length is how many ids the stream has where From stopped, prompt included,
	// and Hash is theirs. For a move with an ID only.
	Length int
	Hash   tokenhash.Hash
	// Cached is how many prompt tokens the first leg found in its engine's
	// cache, −1 for unknown. The usage at the stream's end tells it.
	Cached int
}

// MigrationResult is what became of a Move.
type MigrationResult struct {
	// Epoch is the one in which the stream goes on.
	Epoch policies.Epoch
	// Stall is how long nothing came to the client because of a move that came to
	// its end: from the cut to the first token of the other leg; else 0.
	Stall time.Duration
}

// Holder says where a stream runs.
type Holder struct {
	Replica policies.ReplicaID
	Epoch   policies.Epoch
	// Pending is true while a move or a rescue is under way: the holder may be
	// about to change.
	Pending bool
}

// Holder returns where a stream of this front's clients runs; false when there
// is none of that id.
func (f *Server) Holder(stream string) (Holder, bool) {
	s := f.stream(stream)
	if s == nil {
		return Holder{}, false
	}
	return s.holding(), true
}

// Migrate moves a stream and returns when it has, or when it has failed. The stream
// goes on at m.To in m.Epoch+1 when the error is nil; ErrUnknown and ErrStale
// come without an epoch; after any other error the stream goes on at m.From, as
// if nothing had been: in m.Epoch when nothing was tried, else in m.Epoch+2. ctx
// bounds the whole, and Config.MoveTimeout the time for which the client waits.
func (f *Server) Migrate(ctx context.Context, m Migration) (MigrationResult, error) {
	s := f.stream(m.Stream)
	if s == nil {
		return MigrationResult{}, ErrNoStream
	}
	switch m.To = f.normalize(m.To); {
	case f.replicaOf(m.To) == m.From:
		return MigrationResult{Epoch: m.Epoch}, fmt.Errorf("the stream is at %s already", m.From)
	case m.Reservation != "" && m.Length <= 0:
		return MigrationResult{Epoch: m.Epoch}, fmt.Errorf("the move %s has the length %d", m.Reservation, m.Length)
	}
	c, err := s.claim(m)
	switch {
	case err == ErrNoStream || err == ErrStaleEpoch:
		return MigrationResult{}, err
	case err != nil:
		return MigrationResult{Epoch: m.Epoch}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// What the move does ends with it, whoever ends it.
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-c.over:
			cancel(nil)
		case <-ctx.Done():
		}
	}()
	err = f.carry(ctx, c, m)
	cancel(nil)
	<-ended
	return c.end(err)
}

// carry carries a move out; a splice ends it.
func (f *Server) carry(ctx context.Context, c *cut, m Migration) error {
	if m.To.Address == "" && m.To.Replica != "" {
		// Without an address it would be taken for the own replica.
		return fmt.Errorf("the address of %s is not known", m.To.Replica)
	}
	if m.Reservation == "" {
		if err := f.warm(ctx, c, m); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.MigrationTimeout)
	defer cancel()
	c.want()
	if err := f.freeze(ctx, c, m); err != nil {
		return err
	}
	s := c.stream
	output := len(c.ids) - c.prompt
	if s.resume.Left(output) == 0 {
		return errors.New("no token is left to generate")
	}
	o := s.order(m.To, m.Epoch+1, c.prompt, output)
	body := s.resume.Adopting(output)
	if o.move, o.arrival.Held = m.Reservation, m.Reservation != ""; m.Reservation == "" {
		body = s.resume.Prompted(c.ids, output)
	} else if m.To.Address == "" {
		var err error
		if body, err = f.adopt(o, body); err != nil {
			return fmt.Errorf("%s does not take over: %w", f.replicaOf(m.To), err)
		}
	}
	o.body = &payload{bytes: body}
	leg, first, err := s.open(ctx, o, len(c.ids))
	if err != nil {
		return fmt.Errorf("%s gives no token: %w", f.replicaOf(m.To), err)
	}
	c.splice(leg, first, f.replicaOf(m.To), m.Cached)
	return nil
}

// freeze waits until the client has what is moved, and checks that it is that.
func (f *Server) freeze(ctx context.Context, c *cut, m Migration) error {
	if m.Reservation == "" {
		return c.wait(ctx)
	}
	soon, cancel := context.WithTimeoutCause(ctx, f.catchUp, errShort)
	defer cancel()
	if err := c.wait(soon); err != nil {
		return err
	}
	s := c.stream
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut != c {
		return c.err
	}
	if s.hashLocked(); s.hash != m.Hash {
		return errHash
	}
	return nil
}

// warm lets a target compute the KV of what there is of a long stream, while
// the client reads on. It ends when the target is lost; and, without an error,
// when the client reads on no more because the holder was.
func (f *Server) warm(ctx context.Context, c *cut, m Migration) error {
	s := c.stream
	ctx, cancel := context.WithTimeout(ctx, warmTimeout)
	defer cancel()
	s.mu.Lock()
	ids, prompt := s.ids[:len(s.ids):len(s.ids)], s.prompt
	frozen := c.frozen
	c.hurry = cancel
	s.mu.Unlock()
	if frozen || len(ids) < warmAbove {
		return nil
	}
	l := &link{cancel: cancel}
	s.tries(m.To.Replica, l) // so that the target is watched, and its loss told
	defer s.tried(l)
	o := s.order(m.To, 0, prompt, len(ids)-prompt)
	o.stream, o.request.ID = nil, "" // it is no leg of the stream
	o.body = &payload{bytes: s.resume.Warming(ids)}
	b, err := f.openLegAt(ctx, o)
	if err != nil && l.why(nil) == nil && c.waits() {
		return nil // what was computed is the leg's to find
	}
	if err != nil {
		return fmt.Errorf("%s does not warm up: %w", f.replicaOf(m.To), l.why(err))
	}
	if b.plain == nil {
		b.leg.leave()
		return nil // some engine that streams unasked has computed it too
	}
	defer b.end()
	if b.plain.StatusCode != http.StatusOK {
		return fmt.Errorf("%s does not warm up: %w", f.replicaOf(m.To), refusal(b.plain))
	}
	if b.home != nil {
		b.home.work.Generated(0)
	}
	answer, _ := io.ReadAll(io.LimitReader(b.plain.Body, maxPlain))
	b.settle(answer)
	return l.why(nil)
}

// order is a later leg of the stream, without a body. Its client's headers go
// with it, and its length is known.
func (s *Stream) order(to Target, epoch policies.Epoch, prompt, output int) *legRequest {
	o := &legRequest{
		endpoint: s.endpoint, to: to, header: s.header, front: s.front.cfg.Replica, stream: s, request: s.Request(), epoch: epoch,
		arrival:     loadtracker.Arrival{Input: policies.Tokens(prompt), Output: policies.Tokens(output)},
		hangTimeout: s.hang(),
	}
	return o
}

// hang is how long a leg may pause before its engine counts as lost; 0 for the
// idle timeout.
func (s *Stream) hang() time.Duration {
	if s.front.cfg.Rescuer == nil || s.request.Features&^policies.MinTokens != 0 {
		return 0
	}
	return s.front.cfg.HangTimeout
}

// open opens a later leg and reads it up to its first token. ctx bounds that;
// the leg then lives as long as the stream. given is as in opening.
func (s *Stream) open(ctx context.Context, o *legRequest, given int) (*wireLeg, *openai.Chunk, error) {
	life, cancel := context.WithCancelCause(s.ctx)
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	b, err := s.front.openLegAt(life, o)
	if err == nil && b.leg == nil {
		err = refusal(b.plain)
		b.end()
	}
	var first *openai.Chunk
	if err == nil {
		first, err = opening(b.leg, b.first, given)
	}
	s.tries("", nil)
	if stop() && err == nil {
		return b.leg, first, nil
	}
	if b.leg != nil {
		b.leg.leave()
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause // nobody waits any more
	}
	cancel(nil)
	return nil, nil, err
}

// refusal is the error of an answer that is no stream.
func refusal(resp *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(resp.Body, maxExcerpt))
	return fmt.Errorf("it answers %s: %s", resp.Status, b)
}

// normalize returns a target as this front reaches it: the own replica has no
// address.
func (f *Server) normalize(t Target) Target {
	if t.Replica == f.cfg.Replica {
		return Target{}
	}
	return t
}

// replicaOf returns the id of the replica that a target is.
func (f *Server) replicaOf(t Target) policies.ReplicaID {
	if t.Address == "" {
		return f.cfg.Replica
	}
	return t.Replica
}
