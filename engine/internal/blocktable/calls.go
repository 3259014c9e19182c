package blocktable

import (
	"context"
	"errors"
	"time"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
)

// Call executes a call. Its error is an *api.Refusal.
func (x *Session) Call(ctx context.Context, q *api.Call) (*api.Answer, error) {
	switch q.Op {
	case api.Reserve:
		return x.reserve(ctx, q)
	case api.Fill:
		return x.fill(ctx, q)
	case api.Release:
		return x.release(ctx, q)
	case api.Schedule:
		return x.schedule(ctx)
	case api.List:
		return x.list(ctx, Immediately, q, func(*batch.Scheduler, *batch.Sequence) error { return nil })
	case api.Freeze:
		return x.list(ctx, AtBoundary, q, func(s *batch.Scheduler, leg *batch.Sequence) error { return s.Freeze(leg, x.id) })
	case api.Thaw:
		return x.callLeg(ctx, q.Leg, func(s *batch.Scheduler, leg *batch.Sequence) error { s.Thaw(leg); return nil })
	case api.Drop:
		return x.callLeg(ctx, q.Leg, func(s *batch.Scheduler, leg *batch.Sequence) error { return s.Drop(leg) })
	case api.Pin:
		return x.pin(ctx, q)
	case api.Commit:
		return x.commit(ctx, q)
	}
	return nil, api.Refuse(api.Unsupported, "this engine has no call %.40q", q.Op)
}

func (x *Session) reserve(ctx context.Context, q *api.Call) (*api.Answer, error) {
	switch {
	case q.Reservation == "" || len(q.Reservation) > api.MaxName:
		return nil, api.Refuse(api.Invalid, "the reservation's name must have 1 to %d bytes, not %d", api.MaxName, len(q.Reservation))
	case q.Tokens > uint64(x.cfg.Context):
		return nil, api.Refuse(api.Invalid, "%d tokens exceed the context of %d", q.Tokens, int64(x.cfg.Context))
	}
	var blocks []uint32
	err := x.runOnLoop(ctx, Immediately, func(s *batch.Scheduler) error {
		x.removeEnded()
		r := x.reservations[q.Reservation]
		if r == nil {
			r = &reservation{session: x}
		}
		if r.session != x {
			return api.Refuse(api.InUse, "reservation %q belongs to another session", q.Reservation)
		}
		if err := s.Reserve(&r.Reservation, int(q.Tokens)); err != nil {
			return err
		}
		x.reservations[q.Reservation] = r
		blocks = numbers(r.Blocks())
		return nil
	})
	return &api.Answer{Blocks: blocks}, err
}

// fill reads the blocks on the caller's goroutine.
func (x *Session) fill(ctx context.Context, q *api.Call) (*api.Answer, error) {
	most := uint64(x.cfg.Context)
	if q.From > most || uint64(len(q.IDs)) > most-q.From || q.Computed > most {
		return nil, api.Refuse(api.Invalid, "%d ids from position %d on, %d computed: a request has at most %d tokens", len(q.IDs), q.From, q.Computed, most)
	}
	ids, err := tokens(q.IDs, q.From)
	if err != nil {
		return nil, err
	}
	var fill *batch.Fill
	err = x.runOnLoop(ctx, Immediately, func(s *batch.Scheduler) (err error) {
		r := x.reservations[q.Reservation]
		if r == nil || r.Ended() {
			return ErrUnknown
		}
		fill, err = s.BeginFill(&r.Reservation, int(q.From), ids, int(q.Computed))
		return err
	})
	if err != nil {
		return nil, err
	}
	unread := fill.Read()
	// A fill that has begun must end, whether or not the caller still waits.
	err = x.runOnLoop(context.WithoutCancel(ctx), Immediately, func(s *batch.Scheduler) error { s.EndFill(fill); return nil })
	if err == nil && unread != nil {
		err = api.Refuse(api.Unavailable, "%v", unread)
	}
	return &api.Answer{}, err
}

func (x *Session) release(ctx context.Context, q *api.Call) (*api.Answer, error) {
	return &api.Answer{}, x.runOnLoop(ctx, Immediately, func(s *batch.Scheduler) error {
		if r := x.reservations[q.Reservation]; r != nil {
			s.Release(&r.Reservation)
		}
		x.removeEnded()
		return nil
	})
}

func (x *Session) schedule(ctx context.Context) (*api.Answer, error) {
	var next time.Duration
	err := x.runOnLoop(ctx, Immediately, func(s *batch.Scheduler) error {
		next = x.cfg.Engine.NextToken(s)
		return nil
	})
	return &api.Answer{NextTokenUS: uint64(max(next, 0).Microseconds())}, err
}

// list runs before and answers with a leg's table.
func (x *Session) list(ctx context.Context, when RunPoint, q *api.Call, before func(*batch.Scheduler, *batch.Sequence) error) (*api.Answer, error) {
	var b batch.Table
	err := x.runOnLeg(ctx, when, q.Leg, func(s *batch.Scheduler, leg *batch.Sequence) (err error) {
		from := int(min(q.From, uint64(x.cfg.Context)+1))
		if b, err = s.Table(leg, from); err != nil {
			return err
		}
		return before(s, leg)
	})
	if err != nil {
		return nil, err
	}
	return &api.Answer{
		Generation: b.Generation, Computed: uint64(b.Computed), Length: uint64(b.Length),
		IDs: numbers(b.IDs), FirstBlock: uint64(b.First), Blocks: numbers(b.Blocks),
		Cached: uint64(b.Cached), Prompt: uint64(b.Prompt),
	}, nil
}

// callLeg runs f with a leg.
func (x *Session) callLeg(ctx context.Context, leg string, f func(*batch.Scheduler, *batch.Sequence) error) (*api.Answer, error) {
	return &api.Answer{}, x.runOnLeg(ctx, Immediately, leg, f)
}

// numbers converts blocks or ids to the wire.
func numbers[T kv.Block | model.Token](in []T) []uint32 {
	out := make([]uint32, len(in))
	for i, x := range in {
		out[i] = uint32(x)
	}
	return out
}

// runOnLeg runs f on the loop with the sequence of a leg.
func (t *Table) runOnLeg(ctx context.Context, when RunPoint, name string, f func(*batch.Scheduler, *batch.Sequence) error) error {
	q, ok := t.cfg.Engine.Leg(name)
	if !ok {
		return api.Refuse(api.NotFound, "no request with this leg is running")
	}
	return t.runOnLoop(ctx, when, func(s *batch.Scheduler) error { return f(s, q) })
}

// runOnLoop runs f on the loop and returns its error, or why it did not run, as a *api.Refusal.
func (t *Table) runOnLoop(ctx context.Context, when RunPoint, f func(*batch.Scheduler) error) error {
	var err error
	if never := t.cfg.Engine.Do(ctx, when, func(s *batch.Scheduler) { err = f(s) }); never != nil {
		return api.Refuse(api.Unavailable, "%v", never)
	}
	return refusal(err)
}

// codes are those of the errors of package batch. Others are the caller's mistakes.
var codes = []struct {
	err  error
	code api.Code
}{
	{ErrUnknown, api.NotFound}, {batch.ErrEnded, api.NotFound}, {batch.ErrReleased, api.NotFound}, {batch.ErrFull, api.Full},
	{batch.ErrWaiting, api.NotComputed}, {batch.ErrNoPrefixCache, api.Unsupported}, {batch.ErrAdopted, api.InUse}, {batch.ErrInUse, api.InUse},
	{batch.ErrFilling, api.InUse},
}

// refusal returns err as a *api.Refusal.
func refusal(err error) error {
	if known := (*api.Refusal)(nil); err == nil || errors.As(err, &known) {
		return err
	}
	for _, c := range codes {
		if errors.Is(err, c.err) {
			return api.Refuse(c.code, "%v", err)
		}
	}
	return api.Refuse(api.Invalid, "%v", err)
}
