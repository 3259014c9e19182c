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

// commit has the own front hand a stream over.
func (m *Mover) commit(a transfer.Action) {
	k, msg := key{front, a.Move}, a.Message
	move := frontend.Migration{Stream: msg.Request, From: msg.From, Epoch: msg.Epoch, To: frontend.Target{Replica: msg.Target, Address: m.cfg.Address(msg.Target)},
		Length: int(msg.Length), Hash: msg.Hash, Cached: int(msg.Cached)}
	if msg.Way == transfer.Live {
		move.Reservation = a.Move.String()
	} else {
		move.Cached = -1
	}
	until := m.until(a.Deadline)
	m.records.state(key{source, a.Move}, msg.Kind.String())
	m.enqueue(k, job{kind: a.Kind, run: func(ctx context.Context) func() {
		ctx, span := m.span(ctx, "move.commit", a.Move, msg.Request, msg.Way)
		defer span.End()
		ctx, cancel := context.WithDeadline(ctx, until)
		defer cancel()
		moved, err := m.cfg.Front.Migrate(ctx, move)
		ev := transfer.Event{Kind: transfer.Settled, Move: a.Move, Epoch: moved.Epoch}
		switch {
		case err == nil:
			ev.Answer, ev.Stall = transfer.Done, policies.Micros(moved.Stall/time.Microsecond)
			span.SetAttributes(attribute.Float64("cascade.stall_seconds", moved.Stall.Seconds()))
		case errors.Is(err, frontend.ErrNoStream):
			ev.Answer = transfer.Ended
		case errors.Is(err, frontend.ErrStaleEpoch):
			ev.Answer = transfer.Denied
		default:
			ev.Answer = transfer.Back
			span.RecordError(err)
			m.log.Info("a stream stays where it was", "move", a.Move.String(), "request", msg.Request, "target", string(msg.Target), "error", err)
		}
		return func() { m.step(ev) }
	}})
}

// look tells who holds a stream.
func (m *Mover) look(a transfer.Action) {
	ev := transfer.Event{Kind: transfer.Held, Move: a.Move}
	h, ok := m.cfg.Front.Holder(a.Request)
	if h.Replica == "" {
		h.Replica = m.cfg.Self
	}
	switch {
	case !ok:
		ev.Answer = transfer.Ended
	case h.Pending:
		ev.Answer = transfer.Pending
	case h.Replica == a.Peer:
		ev.Answer, ev.Epoch = transfer.Back, h.Epoch
	default:
		ev.Answer = transfer.Denied
	}
	m.post(func() { m.step(ev) })
}
