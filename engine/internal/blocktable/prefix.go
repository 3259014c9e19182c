package blocktable

import (
	"context"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
)

// pin hashes the ids on the caller's goroutine.
func (x *Session) pin(ctx context.Context, q *api.Call) (*api.Answer, error) {
	switch {
	case q.Reservation == "" || len(q.Reservation) > api.MaxName:
		return nil, api.Refuse(api.Invalid, "the reservation's name must have 1 to %d bytes, not %d", api.MaxName, len(q.Reservation))
	case len(q.IDs) > int(x.cfg.Context):
		return nil, api.Refuse(api.Invalid, "%d ids exceed the context of %d", len(q.IDs), int64(x.cfg.Context))
	case x.cfg.Root == nil:
		return nil, api.Refuse(api.Unsupported, "this engine shows no prefix cache")
	}
	root, err := x.cfg.Root(q.Model, q.CacheSalt)
	if err != nil {
		return nil, api.Refuse(api.Invalid, "%v", err)
	}
	ids, err := tokens(q.IDs, 0)
	if err != nil {
		return nil, err
	}
	prefix := batch.NewSequence(batch.Request{Prompt: ids, Salt: root.Salt, Adapter: root.Adapter, Origin: root.Origin}, x.cfg.Pool.BlockTokens)
	answer := &api.Answer{}
	err = x.runOnLoop(ctx, Immediately, func(s *batch.Scheduler) error {
		x.removeEnded()
		if x.reservations[q.Reservation] != nil {
			return batch.ErrInUse
		}
		r := &reservation{session: x}
		cached, err := s.PinPrefix(&r.Reservation, prefix, q.Rest)
		if err != nil {
			return err
		}
		x.reservations[q.Reservation] = r
		answer.Cached, answer.Blocks = uint64(cached), numbers(r.Blocks())
		return nil
	})
	return answer, err
}

func (x *Session) commit(ctx context.Context, q *api.Call) (*api.Answer, error) {
	if q.Tokens > uint64(x.cfg.Context) {
		return nil, api.Refuse(api.Invalid, "%d tokens exceed the context of %d", q.Tokens, int64(x.cfg.Context))
	}
	return &api.Answer{}, x.runOnLoop(ctx, Immediately, func(s *batch.Scheduler) error {
		r := x.reservations[q.Reservation]
		if r == nil || r.Ended() {
			return ErrUnknown
		}
		err := s.CommitPrefix(&r.Reservation, int(q.Tokens))
		x.removeEnded()
		return err
	})
}

// tokens converts ids from the wire, the first of which is at position from.
func tokens(in []uint32, from uint64) ([]model.Token, error) {
	out := make([]model.Token, len(in))
	for i, id := range in {
		if out[i] = model.Token(id); out[i] >= model.VocabularySize {
			return nil, api.Refuse(api.Invalid, "id %d at position %d is not in the vocabulary", id, from+uint64(i))
		}
	}
	return out, nil
}
