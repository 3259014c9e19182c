package emulator

import (
	"context"
	"errors"

	"github.com/cespare/xxhash/v2"

	kvapi "github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/engine/internal/blocktable"
)

// legHeader is the header with the name of a request in the block table.
const legHeader = "X-Cascade-Leg"

// claimLeg claims the leg name of a new request. An empty name is not claimed.
func (e *Engine) claimLeg(leg string, st *stream) *apiError {
	if len(leg) > kvapi.MaxName {
		return invalid(legHeader, "%s has %d bytes, more than %d", legHeader, len(leg), kvapi.MaxName)
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

// registerLeg registers a request's sequence under its claimed leg name.
func (e *Engine) registerLeg(st *stream) {
	e.mu.Lock()
	st.named = st.sequence
	e.mu.Unlock()
}

// releaseLeg releases the leg name, if it is still claimed. It must be called before the client
// can see the end of its answer: the next request may have the same name.
func (e *Engine) releaseLeg(st *stream) {
	e.mu.Lock()
	if st.leg != "" {
		delete(e.legs, st.leg)
		st.leg = ""
	}
	e.mu.Unlock()
}

// cacheRoot returns how the prefix cache separates the prompts of such requests from others.
func (e *Engine) cacheRoot(model, cacheSalt string) (blocktable.Root, error) {
	if bad := e.checkModel(model); bad != nil {
		return blocktable.Root{}, bad
	}
	r := blocktable.Root{Adapter: e.adapter(model), Origin: e.origin(model, cacheSalt)}
	if cacheSalt != "" {
		r.Salt = xxhash.Sum64String(cacheSalt)
	}
	r.Salt ^= r.Adapter
	return r, nil
}

// adopt starts a request from a reservation. Its cost does not depend on the number of ids.
func (e *Engine) adopt(ctx context.Context, a api, q *request, st *stream) *apiError {
	const param = "kv_transfer_params.cascade_reservation"
	var bad *apiError
	never := e.do(ctx, blocktable.Immediately, func(s *batch.Scheduler) {
		if e.table == nil {
			bad = invalid(param, "this engine serves no block table, and has no reservations")
			return
		}
		x, err := e.table.Adopt(s, q.reservation, func(length int) (batch.Request, error) {
			asked, refused := e.schedulerRequest(a, q, st, length)
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
