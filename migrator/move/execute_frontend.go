package move

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
)

// switchHolder continues a stream of this replica's front end at another replica.
func (m *Executor) switchHolder(a Action) {
	k, msg := key{front, a.Deal}, a.Message
	migration := frontend.Migration{Stream: msg.Request, From: msg.From, Epoch: msg.Epoch, To: policies.Target{Replica: msg.Target, Address: m.cfg.Address(msg.Target)}, FromAddress: m.cfg.Address(msg.From),
		FromConnector: msg.Connector, ToConnector: msg.TargetConnector, FromBusy: msg.EngineBusy, Length: int(msg.Length), Hash: msg.Hash, Cached: int(msg.Cached)}
	if msg.Mode == Live {
		migration.Reservation = a.Deal.String()
	} else {
		migration.Cached, migration.KeepsKV = -1, msg.Mode == Handoff
	}
	until := m.clockTime(a.Deadline)
	m.records.setState(key{source, a.Deal}, msg.Kind.String())
	m.enqueue(k, job{kind: a.Kind, run: func(ctx context.Context) func() {
		h, _ := m.cfg.FrontEnd().Holder(msg.Request)
		ctx, span := m.cfg.Tracer.Start(frontend.ContextWithTrace(ctx, h.Trace), "migration.commit", trace.WithAttributes(attribute.String("cascade.migration", a.Deal.String()),
			attribute.String("cascade.request", msg.Request), attribute.String("cascade.mode", msg.Mode.String())))
		defer span.End()
		ctx, cancel := context.WithDeadline(ctx, until)
		defer cancel()
		result, err := m.cfg.FrontEnd().Migrate(ctx, migration)
		ev := Event{Kind: SwitchResult, Deal: a.Deal, Epoch: result.Epoch}
		switch {
		case err == nil:
			ev.Answer, ev.Stall = Committed, policies.Micros(result.Stall/time.Microsecond)
			if result.Handoff {
				ev.Mode = Handoff
				span.SetAttributes(attribute.String("cascade.mode", ev.Mode.String()))
			}
			span.SetAttributes(attribute.Float64("cascade.stall_seconds", result.Stall.Seconds()))
		case errors.Is(err, frontend.ErrNoStream):
			ev.Answer = Ended
		case errors.Is(err, frontend.ErrStaleEpoch):
			ev.Answer = Rejected
		default:
			ev.Answer = Reverted
			span.RecordError(err)
			m.log.Info("stream stays at its replica", "migration", a.Deal.String(), "request", msg.Request, "target", string(msg.Target), "error", err)
		}
		return func() { m.step(ev) }
	}})
}

// lookUpHolder reports which replica holds a stream of this replica's front end.
func (m *Executor) lookUpHolder(a Action) {
	ev := Event{Kind: HolderResult, Deal: a.Deal}
	h, ok := m.cfg.FrontEnd().Holder(a.Request)
	if h.Replica == "" {
		h.Replica = m.cfg.Self
	}
	switch {
	case !ok:
		ev.Answer = Ended
	case h.Pending:
		ev.Answer = Pending
	case h.Replica == a.Peer:
		ev.Answer, ev.Epoch = Reverted, h.Epoch
	default:
		ev.Answer = Rejected
	}
	m.post(func() { m.step(ev) })
}
