package blocktable

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
)

// PinPrefix implements api.BlocksServer. It hashes the ids on the caller's goroutine.
func (t *Table) PinPrefix(ctx context.Context, q *api.PinPrefixRequest) (*api.PinPrefixReply, error) {
	switch {
	case q.Reservation == "" || len(q.Reservation) > MaxName:
		return nil, status.Errorf(codes.InvalidArgument, "the reservation's name must have 1 to %d bytes, not %d", MaxName, len(q.Reservation))
	case len(q.Ids) > int(t.cfg.Context):
		return nil, status.Errorf(codes.InvalidArgument, "%d ids exceed the context of %d", len(q.Ids), int64(t.cfg.Context))
	case t.cfg.Root == nil:
		return nil, status.Error(codes.Unimplemented, "this engine shows no prefix cache")
	}
	root, err := t.cfg.Root(q.Model, q.CacheSalt)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	ids, err := tokens(q.Ids, 0)
	if err != nil {
		return nil, err
	}
	prefix := batch.NewSequence(batch.Request{Prompt: ids, Salt: root.Salt, Adapter: root.Adapter, Origin: root.Origin}, t.cfg.Pool.BlockTokens)
	reply := &api.PinPrefixReply{}
	err = t.runOnLoop(ctx, Immediately, func(s *batch.Scheduler) error {
		session, err := t.session(q.Session)
		if err != nil {
			return err
		}
		t.removeEnded()
		if t.reservations[q.Reservation] != nil {
			return batch.ErrInUse
		}
		r := &reservation{session: session}
		cached, err := s.PinPrefix(&r.Reservation, prefix, q.Reserve)
		if err != nil {
			return err
		}
		t.reservations[q.Reservation] = r
		reply.Cached, reply.Blocks = uint64(cached), numbers(r.Blocks())
		return nil
	})
	return reply, err
}

// CommitPrefix implements api.BlocksServer.
func (t *Table) CommitPrefix(ctx context.Context, q *api.CommitPrefixRequest) (*api.CommitPrefixReply, error) {
	if q.Tokens > uint64(t.cfg.Context) {
		return nil, status.Errorf(codes.InvalidArgument, "%d tokens exceed the context of %d", q.Tokens, int64(t.cfg.Context))
	}
	return &api.CommitPrefixReply{}, t.runOnLoop(ctx, Immediately, func(s *batch.Scheduler) error {
		r := t.reservations[q.Reservation]
		if r == nil || r.Ended() {
			return ErrUnknown
		}
		err := s.CommitPrefix(&r.Reservation, int(q.Tokens))
		t.removeEnded()
		return err
	})
}

// tokens converts ids from the wire, the first of which is at position from.
func tokens(in []uint32, from uint64) ([]model.Token, error) {
	out := make([]model.Token, len(in))
	for i, id := range in {
		if out[i] = model.Token(id); out[i] >= model.VocabularySize {
			return nil, status.Errorf(codes.InvalidArgument, "id %d at position %d is not in the vocabulary", id, from+uint64(i))
		}
	}
	return out, nil
}
