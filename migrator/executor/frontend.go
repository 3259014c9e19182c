package executor

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/transfer"
	"github.com/cascadeinfer/cascade/policies"
)

// switchHolder continues a stream of this replica's front end at another replica.
func (m *Executor) switchHolder(a transfer.Action) {
	k, msg := key{front, a.Deal}, a.Message
	migration := frontend.Migration{Stream: msg.Request, From: msg.From, Epoch: msg.Epoch, To: policies.Target{Replica: msg.Target, Address: m.cfg.Address(msg.Target)}, FromAddress: m.cfg.Address(msg.From),
		FromConnector: msg.Connector, ToConnector: msg.TargetConnector, FromBusy: msg.EngineBusy, Length: int(msg.Length), Hash: msg.Hash, Cached: int(msg.Cached)}
	if msg.Mode == transfer.Live {
		migration.Reservation = a.Deal.String()
	} else {
		migration.Cached, migration.KeepsKV = -1, msg.Mode == transfer.Handoff
	}
	until := m.clockTime(a.Deadline)
	m.records.setState(key{source, a.Deal}, msg.Kind.String())
	m.enqueue(k, job{kind: a.Kind, run: func(ctx context.Context) func() {
		h, _ := m.cfg.FrontEnd.Holder(msg.Request)
		ctx, span := m.startSwitchSpan(frontend.ContextWithTrace(ctx, h.Trace), "migration.commit", a.Deal, msg.Request, msg.Mode)
		defer span.End()
		ctx, cancel := context.WithDeadline(ctx, until)
		defer cancel()
		result, err := m.cfg.FrontEnd.Migrate(ctx, migration)
		ev := transfer.Event{Kind: transfer.SwitchResult, Deal: a.Deal, Epoch: result.Epoch}
		switch {
		case err == nil:
			ev.Answer, ev.Stall = transfer.Committed, policies.Micros(result.Stall/time.Microsecond)
			if result.Handoff {
				ev.Mode = transfer.Handoff
				span.SetAttributes(attribute.String("cascade.mode", ev.Mode.String()))
			}
			span.SetAttributes(attribute.Float64("cascade.stall_seconds", result.Stall.Seconds()))
		case errors.Is(err, frontend.ErrNoStream):
			ev.Answer = transfer.Ended
		case errors.Is(err, frontend.ErrStaleEpoch):
			ev.Answer = transfer.Rejected
		default:
			ev.Answer = transfer.Reverted
			span.RecordError(err)
			m.log.Info("stream stays at its replica", "migration", a.Deal.String(), "request", msg.Request, "target", string(msg.Target), "error", err)
		}
		return func() { m.step(ev) }
	}})
}

// lookUpHolder reports which replica holds a stream of this replica's front end.
func (m *Executor) lookUpHolder(a transfer.Action) {
	ev := transfer.Event{Kind: transfer.HolderResult, Deal: a.Deal}
	h, ok := m.cfg.FrontEnd.Holder(a.Request)
	if h.Replica == "" {
		h.Replica = m.cfg.Self
	}
	switch {
	case !ok:
		ev.Answer = transfer.Ended
	case h.Pending:
		ev.Answer = transfer.Pending
	case h.Replica == a.Peer:
		ev.Answer, ev.Epoch = transfer.Reverted, h.Epoch
	default:
		ev.Answer = transfer.Rejected
	}
	m.post(func() { m.step(ev) })
}
