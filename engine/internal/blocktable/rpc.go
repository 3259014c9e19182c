package blocktable

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
)

var _ api.BlocksServer = (*Table)(nil)

// Describe implements api.BlocksServer.
func (t *Table) Describe(context.Context, *api.DescribeRequest) (*api.Description, error) {
	return t.description, nil
}

// Session implements api.BlocksServer.
func (t *Table) Session(_ *api.SessionRequest, stream grpc.ServerStreamingServer[api.SessionReply]) error {
	ctx := stream.Context()
	id := uint64(0)
	if err := t.runOnLoop(ctx, Immediately, func(*batch.Scheduler) error {
		for id == 0 || t.sessions[id] {
			id = rand.Uint64()
		}
		t.sessions[id] = true
		return nil
	}); err != nil {
		return err
	}
	// The end does not depend on the caller's context any more. It fails only when the
	// engine has stopped, and then nothing is left to undo.
	defer func() {
		_ = t.runOnLoop(context.WithoutCancel(ctx), Immediately, func(s *batch.Scheduler) error { t.endSession(s, id); return nil })
	}()
	if err := stream.Send(&api.SessionReply{Session: strconv.FormatUint(id, 16)}); err != nil {
		return err
	}
	<-ctx.Done()
	return status.FromContextError(ctx.Err()).Err()
}

// Reserve implements api.BlocksServer.
func (t *Table) Reserve(ctx context.Context, q *api.ReserveRequest) (*api.ReserveReply, error) {
	switch {
	case q.Reservation == "" || len(q.Reservation) > MaxName:
		return nil, status.Errorf(codes.InvalidArgument, "the reservation's name must have 1 to %d bytes, not %d", MaxName, len(q.Reservation))
	case q.Tokens > uint64(t.cfg.Context):
		return nil, status.Errorf(codes.InvalidArgument, "%d tokens exceed the context of %d", q.Tokens, int64(t.cfg.Context))
	}
	var blocks []uint32
	err := t.runOnLoop(ctx, Immediately, func(s *batch.Scheduler) error {
		session, err := t.session(q.Session)
		if err != nil {
			return err
		}
		t.removeEnded()
		r := t.reservations[q.Reservation]
		if r == nil {
			r = &reservation{session: session}
		}
		if r.session != session {
			return status.Errorf(codes.AlreadyExists, "reservation %q belongs to another session", q.Reservation)
		}
		if err := s.Reserve(&r.Reservation, int(q.Tokens)); err != nil {
			return err
		}
		t.reservations[q.Reservation] = r
		blocks = numbers(r.Blocks())
		return nil
	})
	return &api.ReserveReply{Blocks: blocks}, err
}

// MarkFilled implements api.BlocksServer. It reads the blocks on the caller's goroutine.
func (t *Table) MarkFilled(ctx context.Context, q *api.MarkFilledRequest) (*api.MarkFilledReply, error) {
	most := uint64(t.cfg.Context)
	if q.From > most || uint64(len(q.Ids)) > most-q.From || q.Computed > most {
		return nil, status.Errorf(codes.InvalidArgument, "%d ids from position %d on, %d computed: a request has at most %d tokens", len(q.Ids), q.From, q.Computed, most)
	}
	ids, err := tokens(q.Ids, q.From)
	if err != nil {
		return nil, err
	}
	var fill *batch.Fill
	err = t.runOnLoop(ctx, Immediately, func(s *batch.Scheduler) (err error) {
		r := t.reservations[q.Reservation]
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
	err = t.runOnLoop(context.WithoutCancel(ctx), Immediately, func(s *batch.Scheduler) error { s.EndFill(fill); return nil })
	if err == nil && unread != nil {
		err = status.Error(codes.Internal, unread.Error())
	}
	return &api.MarkFilledReply{}, err
}

// Release implements api.BlocksServer.
func (t *Table) Release(ctx context.Context, q *api.ReleaseRequest) (*api.ReleaseReply, error) {
	return &api.ReleaseReply{}, t.runOnLoop(ctx, Immediately, func(s *batch.Scheduler) error {
		if r := t.reservations[q.Reservation]; r != nil {
			s.Release(&r.Reservation)
		}
		t.removeEnded()
		return nil
	})
}

// Schedule implements api.BlocksServer.
func (t *Table) Schedule(ctx context.Context, _ *api.ScheduleRequest) (*api.ScheduleReply, error) {
	var next time.Duration
	err := t.runOnLoop(ctx, Immediately, func(s *batch.Scheduler) error {
		next = t.cfg.Engine.NextToken(s)
		return nil
	})
	return &api.ScheduleReply{NextTokenUs: uint64(max(next, 0).Microseconds())}, err
}

// Table implements api.BlocksServer.
func (t *Table) Table(ctx context.Context, q *api.TableRequest) (*api.TableReply, error) {
	return t.replyTable(ctx, Immediately, q, func(*batch.Scheduler, *batch.Sequence) error { return nil })
}

// Freeze implements api.BlocksServer.
func (t *Table) Freeze(ctx context.Context, q *api.TableRequest) (*api.TableReply, error) {
	return t.replyTable(ctx, AtBoundary, q, func(s *batch.Scheduler, leg *batch.Sequence) error {
		session, err := t.session(q.Session)
		if err != nil {
			return err
		}
		return s.Freeze(leg, session)
	})
}

// replyTable runs before and replies with a leg's table.
func (t *Table) replyTable(ctx context.Context, when RunPoint, q *api.TableRequest, before func(*batch.Scheduler, *batch.Sequence) error) (*api.TableReply, error) {
	var b batch.Table
	err := t.runOnLeg(ctx, when, q.Leg, func(s *batch.Scheduler, leg *batch.Sequence) (err error) {
		from := int(min(q.From, uint64(t.cfg.Context)+1))
		if b, err = s.Table(leg, from); err != nil {
			return err
		}
		return before(s, leg)
	})
	if err != nil {
		return nil, err
	}
	return &api.TableReply{
		Generation: b.Generation, Computed: uint64(b.Computed), Length: uint64(b.Length),
		Ids: numbers(b.IDs), FirstBlock: uint32(b.First), Blocks: numbers(b.Blocks),
		Cached: uint64(b.Cached), Prompt: uint64(b.Prompt),
	}, nil
}

// Thaw implements api.BlocksServer.
func (t *Table) Thaw(ctx context.Context, q *api.LegRequest) (*api.LegReply, error) {
	return &api.LegReply{}, t.runOnLeg(ctx, Immediately, q.Leg, func(s *batch.Scheduler, leg *batch.Sequence) error {
		s.Thaw(leg)
		return nil
	})
}

// Drop implements api.BlocksServer.
func (t *Table) Drop(ctx context.Context, q *api.LegRequest) (*api.LegReply, error) {
	return &api.LegReply{}, t.runOnLeg(ctx, Immediately, q.Leg, func(s *batch.Scheduler, leg *batch.Sequence) error {
		return s.Drop(leg)
	})
}

// numbers converts blocks or ids to the wire.
func numbers[T kv.Block | model.Token](in []T) []uint32 {
	out := make([]uint32, len(in))
	for i, x := range in {
		out[i] = uint32(x)
	}
	return out
}

// session returns a session by name. It must be called on the loop.
func (t *Table) session(name string) (uint64, error) {
	id, err := strconv.ParseUint(name, 16, 64)
	if err != nil || !t.sessions[id] {
		return 0, status.Error(codes.NotFound, "no such session: open one with Session, and keep that call open")
	}
	return id, nil
}

// runOnLeg runs f on the loop with the sequence of a leg.
func (t *Table) runOnLeg(ctx context.Context, when RunPoint, name string, f func(*batch.Scheduler, *batch.Sequence) error) error {
	q, ok := t.cfg.Engine.Leg(name)
	if !ok {
		return status.Error(codes.NotFound, "no request with this leg is running")
	}
	return t.runOnLoop(ctx, when, func(s *batch.Scheduler) error { return f(s, q) })
}

// runOnLoop runs f on the loop and returns its error, or why it did not run, as a status.
func (t *Table) runOnLoop(ctx context.Context, when RunPoint, f func(*batch.Scheduler) error) error {
	var err error
	if never := t.cfg.Engine.Do(ctx, when, func(s *batch.Scheduler) { err = f(s) }); never != nil {
		if ctx.Err() != nil {
			return status.FromContextError(ctx.Err()).Err()
		}
		return status.Error(codes.Unavailable, never.Error())
	}
	return statusOf(err)
}

// statusOf returns err as a status.
func statusOf(err error) error {
	if _, ok := status.FromError(err); ok { // includes nil
		return err
	}
	code := codes.InvalidArgument
	switch {
	case errors.Is(err, ErrUnknown), errors.Is(err, batch.ErrEnded), errors.Is(err, batch.ErrReleased):
		code = codes.NotFound
	case errors.Is(err, batch.ErrFull):
		code = codes.ResourceExhausted
	case errors.Is(err, batch.ErrWaiting):
		code = codes.FailedPrecondition
	case errors.Is(err, batch.ErrNoPrefixCache):
		code = codes.Unimplemented
	case errors.Is(err, batch.ErrAdopted), errors.Is(err, batch.ErrInUse):
		code = codes.AlreadyExists
	case errors.Is(err, batch.ErrFilling):
		code = codes.Aborted
	}
	return status.Error(code, err.Error())
}
