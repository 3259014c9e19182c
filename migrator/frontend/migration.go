package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/migrator/internal/session"
	"github.com/cascadeinfer/cascade/migrator/internal/tokenhash"
	"github.com/cascadeinfer/cascade/policies"
)

const (
	catchUpTimeout = 2 * time.Second // for the tokens of a live migration to reach the front end
	warmupTokens   = 512             // token ids that a target computes before the stream is frozen
	warmupTimeout  = time.Minute
	maxExcerpt     = 512 // bytes of an engine's refusal that an error quotes
)

// What Migrate returns, beside errors after which the stream goes on at From.
var (
	// ErrNoStream says that there is no such stream, or that it is over: nothing
	// reads its tokens any more.
	ErrNoStream = session.ErrNoStream
	// ErrStaleEpoch says that the stream is not at that holder in that epoch, or
	// that another migration of it is under way.
	ErrStaleEpoch = session.ErrStaleEpoch
)

// errShort ends a migration for whose tokens the stream waited in vain.
var errShort = errors.New("the present holder's tokens do not arrive")

// Migration asks for a stream to go on at another replica.
type Migration struct {
	Stream string             // its Request's ID
	From   policies.ReplicaID // the replica that holds it
	Epoch  policies.Epoch     // in which it holds it
	To     Target
	// Reservation names the KV blocks at To that hold the stream's KV; "" means that
	// To is given all token ids and computes it anew.
	Reservation string
	// Length is how many ids the stream has where From stopped, prompt included,
	// and Hash is theirs. For a migration with a Reservation only.
	Length int
	Hash   tokenhash.Hash
	// Cached is how many prompt tokens the first leg found in its engine's
	// cache, −1 for unknown. The usage at the stream's end reports it.
	Cached int
}

// MigrationResult is the outcome of a Migration.
type MigrationResult struct {
	// Epoch is the one in which the stream goes on.
	Epoch policies.Epoch
	// Stall is how long the client got nothing because of a migration that
	// succeeded: from the freeze to the first token of the new leg; else 0.
	Stall time.Duration
}

// Holder says where a stream runs.
type Holder struct {
	Replica policies.ReplicaID
	Epoch   policies.Epoch
	// Pending is true while a migration or a rescue is under way: the holder may be
	// about to change.
	Pending bool
	// Trace is the traceparent of the request's span; "" for none.
	Trace string
}

// Holder returns where a stream of this front end's clients runs; false if there
// is none of that id.
func (srv *Server) Holder(stream string) (Holder, bool) {
	s := srv.stream(stream)
	if s == nil {
		return Holder{}, false
	}
	h := s.currentHolder()
	h.Trace = s.header.Get(traceparent)
	return h, true
}

// Migrate moves a stream to another replica and returns when it runs there, or
// when the migration has failed. If the error is nil the stream goes on at m.To in
// m.Epoch+1. ErrNoStream and ErrStaleEpoch come without an epoch. After any other
// error the stream goes on at m.From as if nothing had happened: in m.Epoch if
// nothing was tried, else in m.Epoch+2. ctx bounds the whole, and
// Config.MigrationTimeout the time for which the client waits.
func (srv *Server) Migrate(ctx context.Context, m Migration) (MigrationResult, error) {
	s := srv.stream(m.Stream)
	if s == nil {
		return MigrationResult{}, ErrNoStream
	}
	switch m.To = srv.normalize(m.To); {
	case srv.replicaOf(m.To) == m.From:
		return MigrationResult{Epoch: m.Epoch}, fmt.Errorf("the stream is at %s already", m.From)
	case m.Reservation != "" && m.Length <= 0:
		return MigrationResult{Epoch: m.Epoch}, fmt.Errorf("migration %s: Length %d must be positive", m.Reservation, m.Length)
	}
	g, err := s.claim(m)
	switch {
	case err == ErrNoStream || err == ErrStaleEpoch:
		return MigrationResult{}, err
	case err != nil:
		return MigrationResult{Epoch: m.Epoch}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The end of the migration, whatever ends it, cancels what it still does.
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-g.over:
			cancel(nil)
		case <-ctx.Done():
		}
	}()
	err = srv.executeMigration(ctx, g, m)
	cancel(nil)
	<-ended
	return g.end(err)
}

// executeMigration carries a migration out; a splice ends it.
func (srv *Server) executeMigration(ctx context.Context, g *migration, m Migration) error {
	if m.To.Address == "" && m.To.Replica != "" {
		// Without an address it would be taken for the own replica.
		return fmt.Errorf("the address of %s is not known", m.To.Replica)
	}
	if m.Reservation == "" {
		if err := srv.warmUp(ctx, g, m); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, srv.cfg.MigrationTimeout)
	defer cancel()
	if err := srv.freeze(ctx, g, m); err != nil {
		return err
	}
	s := g.stream
	output := len(g.ids) - g.prompt
	if s.resume.Remaining(output) == 0 {
		return errors.New("no token is left to generate")
	}
	lr := s.laterLeg(m.To, g.number, g.prompt, output)
	body := s.resume.AdoptBody(output)
	if lr.reservation, lr.arrival.HasKV = m.Reservation, m.Reservation != ""; m.Reservation == "" {
		body = s.resume.PromptBody(g.ids, output)
	} else if m.To.Address == "" {
		var err error
		if body, err = srv.adopt(lr, body); err != nil {
			return fmt.Errorf("%s does not take over: %w", srv.replicaOf(m.To), err)
		}
	}
	lr.body = &payload{bytes: body}
	leg, first, err := s.openLaterLeg(ctx, lr, len(g.ids))
	if err != nil {
		return fmt.Errorf("%s gives no token: %w", srv.replicaOf(m.To), err)
	}
	g.splice(leg, first, srv.replicaOf(m.To), m.Cached)
	return nil
}

// freeze has the stream frozen and waits until it is. A live migration waits for
// the tokens that From has sent already, and not longer.
func (srv *Server) freeze(ctx context.Context, g *migration, m Migration) error {
	g.stream.step(&session.Event{Kind: session.FreezeRequested, Migration: g.number}, nil)
	if m.Reservation != "" {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, catchUpTimeout, errShort)
		defer cancel()
	}
	return g.awaitFreeze(ctx)
}

// warmUp lets a target compute the KV of the present ids of a long stream while
// the client reads on. It returns an error when the target is lost, and none when
// the stream is frozen meanwhile because the holder was.
func (srv *Server) warmUp(ctx context.Context, g *migration, m Migration) error {
	s := g.stream
	ctx, cancel := context.WithTimeout(ctx, warmupTimeout)
	defer cancel()
	s.mu.Lock()
	ids, prompt := s.machine.IDs()
	frozen := g.isFrozen()
	g.stopWarmup = cancel
	s.mu.Unlock()
	if frozen || len(ids) < warmupTokens {
		return nil
	}
	l := &call{cancel: cancel}
	s.setOpening(m.To.Replica, l) // so that the target is watched and its loss noticed
	defer s.clearOpening(l)
	lr := s.laterLeg(m.To, 0, prompt, len(ids)-prompt)
	lr.stream, lr.request.ID = nil, "" // it is no leg of the stream
	lr.body = &payload{bytes: s.resume.WarmupBody(ids)}
	b, err := srv.openLegAt(ctx, lr)
	if err != nil && l.causeOr(nil) == nil && g.isFrozen() {
		return nil // the new leg finds what was computed
	}
	if err != nil {
		return fmt.Errorf("%s does not warm up: %w", m.To.Replica, l.causeOr(err))
	}
	if b.response == nil {
		b.leg.closeMoved()
		return nil // an engine that streams unasked has computed it too
	}
	defer b.release()
	if b.response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s does not warm up: %w", srv.replicaOf(m.To), refusal(b.response))
	}
	if b.local != nil {
		b.local.work.AddOutput(0)
	}
	answer, _ := io.ReadAll(io.LimitReader(b.response.Body, maxInspected))
	b.recordUsage(answer)
	return l.causeOr(nil)
}

// migration is a migration of a stream that the machine has accepted.
type migration struct {
	stream *Stream
	number policies.Epoch // the machine's for it, and the epoch of its leg
	frozen chan struct{}  // closed when the stream is frozen
	over   chan struct{}  // closed when the migration has ended

	// Guarded by stream.mu; ids and prompt are fixed once frozen is closed.
	stopWarmup context.CancelFunc // ends what need not be done once frozen; nil for nothing
	ids        []uint32           // that the client has; must not be changed
	prompt     int                // how many of them are the prompt's
	frozenAt   time.Time
	result     MigrationResult
	err        error
}

// claim begins a migration if the stream is where m says. No other migration or
// rescue begins before it has ended.
func (s *Stream) claim(m Migration) (*migration, error) {
	ev := session.Event{Kind: session.MigrationRequested, From: m.From, Epoch: m.Epoch}
	if m.Reservation != "" {
		ev.Length, ev.Hash = m.Length, m.Hash
	}
	s.mu.Lock()
	actions := s.stepLocked(&ev, nil)
	g := s.migration
	s.mu.Unlock()
	closeLegs(actions)
	for _, a := range actions {
		if a.Kind == session.MigrationRefused {
			return nil, a.Err
		}
	}
	return g, nil
}

func (g *migration) freezeLocked(ids []uint32, prompt int, now time.Time) {
	g.ids, g.prompt, g.frozenAt = ids, prompt, now
	if g.stopWarmup != nil {
		g.stopWarmup()
	}
	close(g.frozen)
}

func (g *migration) endLocked(epoch policies.Epoch, err error, now time.Time) {
	g.result.Epoch, g.err = epoch, err
	if err == nil {
		g.result.Stall = now.Sub(g.frozenAt)
	}
	close(g.over)
}

// isFrozen reports whether the client waits for the migration's leg.
func (g *migration) isFrozen() bool { return isClosed(g.frozen) && !isClosed(g.over) }

// awaitFreeze waits until the stream is frozen.
func (g *migration) awaitFreeze(ctx context.Context) error {
	select {
	case <-g.frozen:
		return nil
	case <-g.over:
		return g.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// splice makes the stream go on with leg, which runs at a replica and whose first
// token is the one after ids. If the migration has ended already, leg is closed.
func (g *migration) splice(leg Leg, first *openai.Chunk, at policies.ReplicaID, cached int) {
	g.stream.step(&session.Event{Kind: session.MigrationLegOpened, Migration: g.number, Leg: leg, Chunk: first, Replica: at,
		Cached: cached, Fingerprint: g.stream.loadFingerprint()}, nil)
}

// end ends the migration if nothing else has, and returns its outcome.
func (g *migration) end(err error) (MigrationResult, error) {
	g.stream.step(&session.Event{Kind: session.MigrationFailed, Migration: g.number, Err: err}, nil)
	<-g.over
	if g.err == ErrNoStream {
		return MigrationResult{}, ErrNoStream
	}
	return g.result, g.err
}
