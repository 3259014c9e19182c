package frontend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/migrator/dialect"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/migrator/internal/session"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

const (
	catchUpTimeout = 2 * time.Second // for the tokens of a live migration to reach the front end
	maxExcerpt     = 512             // bytes of an engine's refusal that an error quotes
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
	To     policies.Target
	// FromAddress is the address of From's peer listener; "" for the own replica, or if
	// it is unknown.
	FromAddress string
	// FromConnector and ToConnector are what the two replicas state of their engines' KV
	// connectors, and FromBusy that From's engine would take long to hand KV over. Of the own
	// engine the server knows better.
	FromConnector, ToConnector engineinfo.KVConnector
	FromBusy                   bool
	// Reservation names the KV blocks at To that hold the stream's KV; "" means that
	// To is given all token ids. Its engine then fetches the KV from From's, where both
	// can, or computes it anew.
	Reservation string
	// Length is how many ids the stream has where From stopped, prompt included,
	// and Hash is theirs. For a migration with a Reservation only.
	Length int
	Hash   prefix.Hash
	// KeepsKV, without a Reservation, says that the stream stays where it is if To's engine
	// cannot fetch its KV. If From is lost meanwhile, To computes it all the same.
	KeepsKV bool
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
	// Handoff says that the target's engine was given what it needs to fetch the KV from
	// From's. An engine without a KV connector computes it all the same, which no answer shows.
	Handoff bool
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
// when the migration has failed. If the error is nil the stream goes on at m.To.
// ErrNoStream and ErrStaleEpoch come without an epoch. After any other error the
// stream goes on at m.From as if nothing had happened. The result has the epoch in
// which it goes on: m.Epoch if nothing was tried. ctx bounds the whole, and
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
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The end of the migration, whatever ends it, cancels what it still does.
	defer context.AfterFunc(g.over, cancel)()
	return g.end(srv.executeMigration(ctx, g, m))
}

// executeMigration carries a migration out; a splice ends it.
func (srv *Server) executeMigration(ctx context.Context, g *migration, m Migration) error {
	if m.To.Address == "" && m.To.Replica != "" {
		// Without an address it would be taken for the own replica.
		return fmt.Errorf("the address of %s is not known", m.To.Replica)
	}
	if m.Reservation == "" {
		return srv.moveIDs(ctx, g, m)
	}
	ctx, cancel := context.WithTimeout(ctx, srv.cfg.MigrationTimeout)
	defer cancel()
	lr, err := srv.freeze(ctx, g, m)
	if err != nil {
		return err
	}
	body := g.stream.dialect.Continue(&g.stream.cfg.Resume, dialect.Continuation{Output: len(g.ids) - g.prompt})
	lr.reservation, lr.arrival.HasKV = m.Reservation, true
	if m.To.Address == "" {
		if body, err = srv.adopt(lr, body); err != nil {
			return fmt.Errorf("%s does not take over: %w", srv.replicaOf(m.To), err)
		}
	}
	lr.body = &payload{bytes: body}
	leg, first, err := g.stream.openLaterLeg(ctx, lr, len(g.ids))
	if err != nil {
		return fmt.Errorf("%s gives no token: %w", srv.replicaOf(m.To), err)
	}
	g.splice(leg, first, srv.replicaOf(m.To), m.Cached)
	return nil
}

// freeze has the stream frozen, waits until it is, and returns the request for the leg
// at the target, without a body. A live migration waits for the tokens that From has sent
// already, and not longer.
func (srv *Server) freeze(ctx context.Context, g *migration, m Migration) (*legRequest, error) {
	g.stream.step(&session.Event{Kind: session.FreezeRequested, Migration: g.number}, nil)
	if m.Reservation != "" {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, catchUpTimeout, errShort)
		defer cancel()
	}
	holder := srv.normalize(policies.Target{Replica: m.From, Address: m.FromAddress})
	if err := g.awaitFreeze(ctx, func(ctx context.Context, ids []uint32) (bool, error) { return srv.askTextEnd(ctx, holder, ids) }); err != nil {
		return nil, err
	}
	output := len(g.ids) - g.prompt
	if g.stream.cfg.Resume.Remaining(output) == 0 {
		return nil, errors.New("no token is left to generate")
	}
	return g.stream.laterLeg(m.To, g.number, g.prompt, output), nil
}

// migration is a migration of a stream that the machine has accepted.
type migration struct {
	stream *Stream
	number policies.Epoch  // the machine's for it, and the epoch of its leg; of the goroutine that migrates
	frozen chan struct{}   // closed when the stream is frozen
	checks chan []uint32   // ids of which the machine must know whether they end with a character
	lost   context.Context // ends when the pump waits for the migration because it has lost its leg
	lose   context.CancelFunc
	over   context.Context // ends with the migration
	finish context.CancelFunc

	// Guarded by stream.mu; ids and prompt are fixed once frozen is closed.
	stopWarmup context.CancelFunc // ends what need not be done once frozen; nil for nothing
	ids        []uint32           // that the client has; must not be changed
	prompt     int                // how many of them are the prompt's
	frozenAt   time.Time
	result     MigrationResult
	err        error
}

func newMigration(s *Stream, number policies.Epoch) *migration {
	g := &migration{stream: s, number: number, frozen: make(chan struct{}), checks: make(chan []uint32, 1)}
	g.lost, g.lose = context.WithCancel(context.Background())
	g.over, g.finish = context.WithCancel(context.Background())
	return g
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
	g.finish()
}

// isFrozen reports whether the client waits for the migration's leg.
func (g *migration) isFrozen() bool { return isClosed(g.frozen) && g.over.Err() == nil }

// awaitFreeze waits until the stream is frozen. check finds out whether ids end with a
// character.
func (g *migration) awaitFreeze(ctx context.Context, check func(context.Context, []uint32) (bool, error)) error {
	for {
		select {
		case <-g.frozen:
			return nil
		case <-g.over.Done():
			return g.err
		case ids := <-g.checks:
			aligned, err := check(ctx, ids)
			if err != nil {
				g.stream.log().Info("text not checked; the stream moves after an event of one token", "error", err)
			}
			g.stream.step(&session.Event{Kind: session.TextChecked, Migration: g.number, Aligned: aligned, Err: err}, nil)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// splice makes the stream go on with leg, which runs at a replica and whose first
// token is the one after ids. If the migration has ended already, leg is closed.
func (g *migration) splice(leg *wireLeg, first *openai.Chunk, at policies.ReplicaID, cached int) {
	g.stream.step(&session.Event{Kind: session.MigrationLegOpened, Migration: g.number, Leg: leg, Chunk: first, Replica: at,
		Cached: cached, Fingerprint: g.stream.loadFingerprint()}, nil)
}

// end ends the migration if nothing else has, and returns its outcome.
func (g *migration) end(err error) (MigrationResult, error) {
	g.stream.step(&session.Event{Kind: session.MigrationFailed, Migration: g.number, Err: err}, nil)
	<-g.over.Done()
	switch {
	case g.err == ErrNoStream:
		return MigrationResult{}, ErrNoStream
	case g.err != nil:
		g.result.Handoff = false
	}
	return g.result, g.err
}
