package emulator

import (
	"context"
	"errors"

	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/engine/internal/blocktable"
)

// legHeader is the name of a request in the block table.
const legHeader = "X-Cascade-Leg"

// claim takes the name of a leg for a request that begins. No name is none.
func (e *Engine) claim(leg string, st *stream) *apiError {
	if len(leg) > blocktable.MaxName {
		return invalid(legHeader, "%s has %d bytes, more than %d", legHeader, len(leg), blocktable.MaxName)
	}
	if leg == "" {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, taken := e.legs[leg]; taken {
		return conflict(legHeader, "a request of the leg %q is running; every attempt needs a leg of its own", leg)
	}
	st.leg, e.legs[leg] = leg, st
	return nil
}

// name lets a request be found by the name that it has claimed.
func (e *Engine) name(st *stream) {
	e.mu.Lock()
	st.named = st.sequence
	e.mu.Unlock()
}

// disclaim gives the name back, if it was not yet. It comes before the client
// can learn that its answer is over: the next request may have the same name.
func (e *Engine) disclaim(st *stream) {
	e.mu.Lock()
	if st.leg != "" {
		delete(e.legs, st.leg)
		st.leg = ""
	}
	e.mu.Unlock()
}

// adopt makes a request of a reservation run. Nothing here depends on how many
// ids the reservation has.
func (e *Engine) adopt(ctx context.Context, a api, q *request, st *stream) *apiError {
	const param = "kv_transfer_params.cascade_reservation"
	var bad *apiError
	never := e.do(ctx, blocktable.AtOnce, func(s *batch.Scheduler) {
		if e.table == nil {
			bad = invalid(param, "this engine serves no block table, and has no reservations")
			return
		}
		x, err := e.table.Adopt(s, q.reservation, func(length int) (batch.Request, error) {
			asked, refused := e.asked(a, q, st, length)
			if refused != nil {
				return asked, refused
			}
			return asked, nil
		})
		var refused *apiError
		switch {
		case err == nil:
			st.prompt, st.sequence = len(x.Prompt), x
			st.tail = tail(e.model.Vocabulary, x.Prompt[min(q.from, len(x.Prompt)):])
		case errors.As(err, &refused):
			bad = refused
		case errors.Is(err, blocktable.ErrUnknown):
			bad = invalid(param, "reservation %q: %v; it may have been released", q.reservation, err)
			bad.Type, bad.Code = "NotFoundError", 404
		default:
			bad = conflict(param, "reservation %q: %v", q.reservation, err)
		}
	})
	if never != nil {
		return unavailable(never)
	}
	return bad
}
