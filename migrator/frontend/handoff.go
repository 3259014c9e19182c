package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/cascadeinfer/cascade/migrator/dialect"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/internal/handoff"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/migrator/internal/session"
	"github.com/cascadeinfer/cascade/policies"
)

// computeTimeout is for a target to compute the KV of a stream that goes on.
const computeTimeout = time.Minute

// idMove moves a stream to a target that is given its token ids. It drives a
// handoff.Machine.
type idMove struct {
	srv   *Server
	g     *migration
	m     Migration
	start time.Time

	ids     []uint32    // that the holder was last asked for, or the target computes
	params  []byte      // for these ids
	request *legRequest // of the target's leg; nil until the stream is frozen
	leg     *wireLeg
	first   *openai.Chunk
}

// moveIDs executes a migration without a Reservation; a splice ends it.
func (srv *Server) moveIDs(ctx context.Context, g *migration, m Migration) error {
	v := &idMove{srv: srv, g: g, m: m, start: time.Now()}
	from, to := m.From, srv.replicaOf(m.To)
	whyNot := srv.checkHandoff(m, v.start)
	if !m.KeepsKV {
		v.logReprompt(whyNot)
	}
	machine := handoff.New(handoff.Config{NoHandoff: whyNot, KeepsKV: m.KeepsKV, Patience: srv.cfg.MigrationTimeout})
	ev := handoff.Event{Kind: handoff.Started}
	for {
		v.complete(&ev)
		a := machine.Step(ev)
		if a.Discard {
			v.leg.closeMoved()
		}
		var err error
		done := handoff.Copied
		switch a.Kind {
		case handoff.KeepKV:
			done, err = handoff.Kept, v.keepKV(ctx, a.Within)
		case handoff.CopyKV:
			err = v.warmUp(ctx, a.Within, v.params)
		case handoff.Compute:
			v.snapshot()
			err = v.warmUp(ctx, computeTimeout, nil)
		case handoff.Freeze:
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, srv.cfg.MigrationTimeout)
			defer cancel()
			done = handoff.Frozen
			v.request, err = srv.freeze(ctx, g, m)
		case handoff.OpenHandoff:
			done, err = handoff.Opened, v.openHandoff(ctx, a.Within)
		case handoff.OpenReprompt:
			if a.Renew { // a leg was discarded: the next one needs a number of its own
				g.stream.step(&session.Event{Kind: session.MigrationRetried, Migration: g.number}, nil)
			}
			v.logReprompt(machine.Failure())
			done, err = handoff.Opened, v.open(ctx, g.ids, nil)
		case handoff.Splice:
			g.result.Handoff = machine.Handoff()
			g.splice(v.leg, v.first, to, m.Cached)
			return nil
		case handoff.Fail:
			return a.Err
		}
		ev = handoff.Event{Kind: done}
		if err != nil {
			ev = handoff.Event{Kind: handoff.Failed, Err: err, TargetLost: errors.Is(err, errReplicaGone)}
		}
		srv.backoffs.learn(from, to, a.Kind, err, time.Now())
	}
}

// complete adds to an event how the stream is now.
func (v *idMove) complete(ev *handoff.Event) {
	s := v.g.stream
	s.mu.Lock()
	ids, _ := s.machine.IDs()
	ev.IDs, ev.Frozen = len(ids), v.g.isFrozen()
	s.mu.Unlock()
	ev.Now, ev.HolderLost = time.Since(v.start), v.g.lost.Err() != nil
}

// snapshot takes the stream's present ids as those that are kept or computed next.
func (v *idMove) snapshot() (prompt int) {
	s := v.g.stream
	s.mu.Lock()
	defer s.mu.Unlock()
	v.ids, prompt = s.machine.IDs()
	return prompt
}

// keepKV asks the holder's engine to keep the KV of the present ids for another engine.
func (v *idMove) keepKV(ctx context.Context, within time.Duration) error {
	ctx, cancel := v.whileHeld(ctx, within)
	defer cancel()
	prompt := v.snapshot()
	s := v.g.stream
	lr := s.laterLeg(v.srv.normalize(policies.Target{Replica: v.m.From, Address: v.m.FromAddress}), 0, prompt, len(v.ids)-prompt)
	lr.endpoint, lr.stream, lr.request.ID = openai.Completions, nil, "" // it is no leg of the stream
	lr.plain, lr.arrival.HasKV = true, true
	kv := v.srv.kv()
	lr.body = &payload{bytes: kv.Keep(&s.cfg.Resume, v.ids)}
	answer, err := v.srv.callOnce(ctx, lr)
	if err == nil {
		var connector string
		v.params, connector, err = kv.Kept(answer, len(v.ids))
		if v.m.From == v.srv.cfg.Replica {
			v.srv.noteConnector(connector, err)
		}
		c, _ := v.srv.holderConnector(v.m)
		err = checkNull(c, err)
	}
	if err != nil {
		return fmt.Errorf("%s does not hand the KV over: %w", v.m.From, causeOf(ctx, err))
	}
	return nil
}

// warmUp has the target fetch the KV of v.ids with parameters, or compute it without, while the client reads on. It
// stops when the stream is frozen, because its holder was lost.
func (v *idMove) warmUp(ctx context.Context, within time.Duration, fetch []byte) error {
	s, g := v.g.stream, v.g
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	s.mu.Lock()
	_, prompt := s.machine.IDs()
	g.stopWarmup = cancel
	frozen := g.isFrozen()
	s.mu.Unlock()
	if frozen {
		return nil
	}
	l := &call{cancel: cancel}
	s.setOpening(v.m.To.Replica, l) // so that the target is watched and its loss noticed
	defer s.clearOpening(l)
	lr := s.laterLeg(v.m.To, 0, prompt, len(v.ids)-prompt)
	lr.stream, lr.request.ID = nil, "" // it is no leg of the stream
	lr.body = &payload{bytes: s.dialect.Continue(&s.cfg.Resume, dialect.Continuation{IDs: v.ids, Warm: true, Fetch: fetch})}
	lr.fetches, lr.arrival.HasKV = fetch != nil, fetch != nil
	if _, err := v.srv.callOnce(ctx, lr); err != nil {
		return fmt.Errorf("%s does not warm up: %w", v.srv.replicaOf(v.m.To), l.causeOr(causeOf(ctx, err)))
	}
	return l.causeOr(nil)
}

// openHandoff opens the target's leg, whose engine fetches the KV. It gives up when the
// holder is lost.
func (v *idMove) openHandoff(ctx context.Context, within time.Duration) error {
	ctx, cancel := v.whileHeld(ctx, within)
	defer cancel()
	return v.open(ctx, v.ids, v.params)
}

// open opens the target's leg, which fetches the KV of ids with parameters, or computes it without, and reads it
// up to its first token.
func (v *idMove) open(ctx context.Context, ids []uint32, fetch []byte) (err error) {
	lr := *v.request
	body := v.g.stream.dialect.Continue(&v.g.stream.cfg.Resume, dialect.Continuation{IDs: ids, Output: len(ids) - v.g.prompt, Fetch: fetch})
	lr.epoch, lr.body, lr.arrival.HasKV, lr.fetches = v.g.number, &payload{bytes: body}, fetch != nil, fetch != nil
	if v.leg, v.first, err = v.g.stream.openLaterLeg(ctx, &lr, len(v.g.ids)); err != nil {
		return fmt.Errorf("%s gives no token: %w", v.srv.replicaOf(v.m.To), err)
	}
	return nil
}

// whileHeld returns a context that ends with ctx, after within, or when the holder is lost.
func (v *idMove) whileHeld(ctx context.Context, within time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, within)
	ctx, lose := context.WithCancelCause(ctx)
	stop := context.AfterFunc(v.g.lost, func() { lose(handoff.ErrHolderLost) })
	return ctx, func() {
		stop()
		cancel()
	}
}

// logReprompt logs why no handoff is tried, or why one has become a reprompt, unless that is how the
// engines are configured.
func (v *idMove) logReprompt(err error) {
	if err != nil && !errors.Is(err, errNoHandoff) && !errors.Is(err, engineinfo.ErrNoConnector) {
		v.g.stream.log().Info("KV not handed over; the target computes it", "from", v.m.From, "to", v.srv.replicaOf(v.m.To), "error", err)
	}
}

// callOnce sends a request that is no leg of a stream, and returns the whole answer.
func (srv *Server) callOnce(ctx context.Context, lr *legRequest) ([]byte, error) {
	b, err := srv.openLegAt(ctx, lr)
	if err != nil {
		return nil, err
	}
	if b.response == nil {
		b.leg.closeMoved()
		return nil, nil // an engine that streams unasked has computed it too
	}
	defer b.release()
	if b.response.StatusCode != http.StatusOK {
		return nil, refusal(b.response)
	}
	if b.local != nil {
		b.local.work.AddOutput(0)
	}
	b.keepAnswer()
	answer, err := io.ReadAll(io.LimitReader(b.response.Body, maxInspected))
	return answer, b.call.causeOr(err)
}

// causeOf returns why ctx ended, else err.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}
