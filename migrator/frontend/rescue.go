package frontend

import (
	"context"
	"time"

	"github.com/cascadeinfer/cascade/internal/localfault"
	"github.com/cascadeinfer/cascade/migrator/dialect"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/migrator/internal/session"
	"github.com/cascadeinfer/cascade/policies"
)

// rescuePoll is the time between two checks whether the own engine is back.
const rescuePoll = 20 * time.Millisecond

// localRetry is the time until a rescue that this process had no resources for is tried
// again. It uses up no attempt: no replica has refused the stream.
const localRetry = 100 * time.Millisecond

// pause waits for d; it returns false if ctx ends before.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Rescue is the outcome for a stream that lost its engine.
type Rescue struct {
	Stream   string
	Epoch    policies.Epoch     // of the last attempt; with Stream it names the rescue
	From, To policies.ReplicaID // To is where it was tried last, "" for nowhere
	Length   policies.Tokens    // of the stream when it lost its engine
	Start    time.Time          // when the front end noticed the loss
	Duration time.Duration      // until the first token of another engine, or until the rescue was given up
	Err      error              // why the stream must end; nil if it goes on
	Trace    string             // the traceparent of the request's span; "" for none
}

// rescue is what the pump knows of the rescue in progress.
type rescue struct {
	start  time.Time
	probes uint64 // health checks of the own engine that had begun when it last failed
	target policies.Target
}

// reportLoss logs what becomes of a lost leg.
func (s *Stream) reportLoss(a *session.Action) {
	log := s.log().With("error", a.Err)
	switch a.Loss {
	case session.Rescuing:
		s.rescue = rescue{start: time.Now(), probes: s.server.probesBegun.Load()}
		log.Warn("stream lost its engine; seeking another replica", "holder", s.currentHolder().Replica)
	case session.Concluded:
		log.Warn("stream lost its engine after its last token; ended by the front end")
	case session.Exhausted:
		log.Error("stream lost too many engines in a row; ending it")
	}
}

// reportRescue reports the outcome of a rescue.
func (s *Stream) reportRescue(r *session.Rescue) {
	log := s.log().With("from", r.From, "to", r.To, "tokens", r.Length, "after", time.Since(s.rescue.start).Round(time.Millisecond))
	if r.Err != nil {
		log.Warn("stream not rescued", "error", r.Err)
	} else {
		log.Info("stream goes on at another replica")
	}
	if report := s.server.cfg.OnRescue; report != nil {
		report(Rescue{Stream: s.id, Epoch: r.Epoch, From: r.From, To: r.To, Length: policies.Tokens(r.Length),
			Start: s.rescue.start, Duration: time.Since(s.rescue.start), Err: r.Err, Trace: s.header.Get(traceparent)})
	}
}

// seek finds a replica that can continue the stream: the one that the Rescuer
// names, else the own one once its engine has passed a health check that began after the loss.
func (s *Stream) seek(a *session.Action) session.Event {
	srv := s.server
	if to, ok := srv.cfg.Rescuer.Rescue(s.Request(), a.Tried); ok {
		return s.rescueAt(srv.normalize(to))
	}
	tick := time.NewTicker(rescuePoll)
	defer tick.Stop()
	for end := time.Now().Add(srv.cfg.RescueTimeout); time.Now().Before(end); {
		if srv.ready.Load() && srv.probePassed.Load() > s.rescue.probes {
			return s.rescueAt(policies.Target{})
		}
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			return session.Event{Kind: session.NoReplica}
		}
	}
	return session.Event{Kind: session.NoReplica}
}

func (s *Stream) rescueAt(to policies.Target) session.Event {
	s.rescue.target, s.rescue.probes = to, s.server.probesBegun.Load()
	return session.Event{Kind: session.ReplicaFound, Replica: s.server.replicaOf(to)}
}

// openRescueLeg opens a leg at the replica that was found.
func (s *Stream) openRescueLeg(a *session.Action) session.Event {
	ctx, cancel := context.WithTimeout(s.ctx, s.server.cfg.RescueTimeout)
	defer cancel()
	leg, first, err := s.openRescueLegAt(ctx, a)
	for localfault.Is(err) && pause(ctx, localRetry) {
		leg, first, err = s.openRescueLegAt(ctx, a)
	}
	if err != nil {
		s.log().Warn("rescue failed at a replica", "replica", a.Replica, "error", err)
		return session.Event{Kind: session.OpenFailed, Err: err, Lost: isLost(err)}
	}
	return session.Event{Kind: session.LegOpened, Leg: leg, Chunk: first, Replica: a.Replica, Fingerprint: s.loadFingerprint()}
}

// openRescueLegAt opens a leg where s.rescue says.
func (s *Stream) openRescueLegAt(ctx context.Context, a *session.Action) (leg *wireLeg, first *openai.Chunk, err error) {
	output := len(a.IDs) - a.Prompt
	lr := s.laterLeg(s.rescue.target, a.Epoch, a.Prompt, output)
	lr.body = &payload{bytes: s.dialect.Continue(&s.cfg.Resume, dialect.Continuation{IDs: a.IDs, Output: output})}
	if !a.Aligned {
		if lr.firstText, err = s.newFirstText(ctx, lr.target, a.IDs, a.Prompt, a.TextIDs); err != nil {
			return nil, nil, err
		}
	}
	return s.openLaterLeg(ctx, lr, len(a.IDs))
}
