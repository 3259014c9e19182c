package blocktable

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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
	if err := t.do(ctx, AtOnce, func(*batch.Scheduler) error {
		for id == 0 || t.sessions[id] {
			id = rand.Uint64()
		}
		t.sessions[id] = true
		return nil
	}); err != nil {
		return err
	}
	// Its end does not depend on the caller any more. It fails only when the
	// engine has stopped, and then nothing is left to take back.
	defer func() {
		_ = t.do(context.WithoutCancel(ctx), AtOnce, func(s *batch.Scheduler) error { t.end(s, id); return nil })
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
		return nil, status.Errorf(codes.InvalidArgument, "%d tokens are more than a request may have (%d)", q.Tokens, int64(t.cfg.Context))
	}
	var blocks []uint32
	err := t.do(ctx, AtOnce, func(s *batch.Scheduler) error {
		session, err := t.session(q.Session)
		if err != nil {
			return err
		}
		t.sweep()
		r := t.reservations[q.Reservation]
		if r == nil {
			r = &reservation{session: session}
		}
		if r.session != session {
			return status.Errorf(codes.AlreadyExists, "another session has the reservation %q", q.Reservation)
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

// MarkFilled implements api.BlocksServer. The blocks are read on the caller's
// goroutine.
func (t *Table) MarkFilled(ctx context.Context, q *api.MarkFilledRequest) (*api.MarkFilledReply, error) {
	most := uint64(t.cfg.Context)
	if q.From > most || uint64(len(q.Ids)) > most-q.From || q.Computed > most {
		return nil, status.Errorf(codes.InvalidArgument, "%d ids from position %d on, %d computed: a request has at most %d tokens", len(q.Ids), q.From, q.Computed, most)
	}
	ids := make([]model.Token, len(q.Ids))
	for i, id := range q.Ids {
		if ids[i] = model.Token(id); ids[i] >= model.VocabularySize {
			return nil, status.Errorf(codes.InvalidArgument, "id %d at position %d is out of vocabulary", id, q.From+uint64(i))
		}
	}
	var fill *batch.Fill
	err := t.do(ctx, AtOnce, func(s *batch.Scheduler) (err error) {
		r := t.reservations[q.Reservation]
		if r == nil || r.Over() {
			return ErrUnknown
		}
		fill, err = s.BeginFill(&r.Reservation, int(q.From), ids, int(q.Computed))
		return err
	})
	if err != nil {
		return nil, err
	}
	unread := fill.Read()
	// What was begun is ended, whether or not the caller still waits.
	err = t.do(context.WithoutCancel(ctx), AtOnce, func(s *batch.Scheduler) error { s.EndFill(fill); return nil })
	if err == nil && unread != nil {
		err = status.Error(codes.Internal, unread.Error())
	}
	return &api.MarkFilledReply{}, err
}

// Release implements api.BlocksServer.
func (t *Table) Release(ctx context.Context, q *api.ReleaseRequest) (*api.ReleaseReply, error) {
	return &api.ReleaseReply{}, t.do(ctx, AtOnce, func(s *batch.Scheduler) error {
		if r := t.reservations[q.Reservation]; r != nil {
			s.Release(&r.Reservation)
		}
		t.sweep()
		return nil
	})
}

// Table implements api.BlocksServer.
func (t *Table) Table(ctx context.Context, q *api.TableRequest) (*api.TableReply, error) {
	return t.tell(ctx, AtOnce, q, func(*batch.Scheduler, *batch.Sequence) error { return nil })
}

// Freeze implements api.BlocksServer.
func (t *Table) Freeze(ctx context.Context, q *api.TableRequest) (*api.TableReply, error) {
	return t.tell(ctx, AtBoundary, q, func(s *batch.Scheduler, leg *batch.Sequence) error {
		session, err := t.session(q.Session)
		if err != nil {
			return err
		}
		return s.Freeze(leg, session)
	})
}

// tell answers with a leg's table, after before.
func (t *Table) tell(ctx context.Context, when When, q *api.TableRequest, before func(*batch.Scheduler, *batch.Sequence) error) (*api.TableReply, error) {
	var b batch.Table
	err := t.leg(ctx, when, q.Leg, func(s *batch.Scheduler, leg *batch.Sequence) (err error) {
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
	return &api.LegReply{}, t.leg(ctx, AtOnce, q.Leg, func(s *batch.Scheduler, leg *batch.Sequence) error {
		s.Thaw(leg)
		return nil
	})
}

// Drop implements api.BlocksServer.
func (t *Table) Drop(ctx context.Context, q *api.LegRequest) (*api.LegReply, error) {
	return &api.LegReply{}, t.leg(ctx, AtOnce, q.Leg, func(s *batch.Scheduler, leg *batch.Sequence) error {
		return s.Drop(leg)
	})
}

// numbers are blocks or ids as the wire has them.
func numbers[T kv.Block | model.Token](in []T) []uint32 {
	out := make([]uint32, len(in))
	for i, x := range in {
		out[i] = uint32(x)
	}
	return out
}

// session returns the session of a name. It is called on the loop.
func (t *Table) session(name string) (uint64, error) {
	id, err := strconv.ParseUint(name, 16, 64)
	if err != nil || !t.sessions[id] {
		return 0, status.Error(codes.NotFound, "no such session: open one with Session, and keep that call open")
	}
	return id, nil
}

// leg runs f on the loop with the sequence of a leg.
func (t *Table) leg(ctx context.Context, when When, name string, f func(*batch.Scheduler, *batch.Sequence) error) error {
	q, ok := t.cfg.Engine.Leg(name)
	if !ok {
		return status.Error(codes.NotFound, "no request of that leg runs here")
	}
	return t.do(ctx, when, func(s *batch.Scheduler) error { return f(s, q) })
}

// do runs f on the loop and returns its error, or why it did not run, as a
// status.
func (t *Table) do(ctx context.Context, when When, f func(*batch.Scheduler) error) error {
	var err error
	if never := t.cfg.Engine.Do(ctx, when, func(s *batch.Scheduler) { err = f(s) }); never != nil {
		if ctx.Err() != nil {
			return status.FromContextError(ctx.Err()).Err()
		}
		return status.Error(codes.Unavailable, never.Error())
	}
	return statusOf(err)
}

// statusOf gives an error its code.
func statusOf(err error) error {
	if _, ok := status.FromError(err); ok { // nil is one
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
	case errors.Is(err, batch.ErrAdopted):
		code = codes.AlreadyExists
	case errors.Is(err, batch.ErrFilling):
		code = codes.Aborted
	}
	return status.Error(code, err.Error())
}
