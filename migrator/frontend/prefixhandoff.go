package frontend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/migrator/dialect"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/internal/handoff"
	"github.com/cascadeinfer/cascade/migrator/internal/loadtracker"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
)

// errLatePrefix ends a leg whose engine may have fetched the prefix after the holder had reused its
// blocks: its cache may be wrong.
var errLatePrefix = errors.New("the first token came too late after the engine was asked to fetch the prompt's KV")

// handPrefixOver has the own engine fetch the KV of token ids from the holder's, by the KV connectors
// of the two, as a handoff does before it freezes a stream: each engine gets a request for one token of
// exactly these ids. The own engine caches the ids' whole blocks, which the leg then finds.
//
// arrival is that of the holder's request: one without Input has the holder compute what it lacks.
//
// The guards are those of package handoff. An engine that is asked to fetch and does not answer
// in time may still do so: then the leg is not used if its first token comes after the holder's lease.
func (srv *Server) handPrefixOver(ctx context.Context, lr *legRequest, req *openai.Request, holder policies.Target, ids []uint32, arrival loadtracker.Arrival) (policies.Tokens, error) {
	kv := srv.kv()
	q, ok := req.Resume()
	if !ok {
		return 0, errNotFetchable
	}
	ctx, cancel := context.WithTimeout(ctx, handoff.Deadline)
	defer cancel()
	call := func(to policies.Target, endpoint openai.Endpoint, body []byte, arrival loadtracker.Arrival, fetches bool) ([]byte, error) {
		request := policies.Request{Model: lr.request.Model, Input: policies.Tokens(len(ids)), MaxOutput: 1}
		answer, err := srv.callOnce(ctx, &legRequest{
			endpoint: endpoint, target: to, header: lr.header, body: &payload{bytes: body}, frontEnd: srv.cfg.Replica, request: request, plain: true,
			arrival: arrival, fetches: fetches, tenant: lr.tenant,
		})
		if ctx.Err() == nil { // else it may only have been slow
			lr.losses.note(err)
		}
		return answer, err
	}
	asked := time.Now()
	answer, err := call(holder, openai.Completions, kv.Keep(&q, ids), arrival, false)
	var params []byte
	if err == nil {
		params, _, err = kv.Kept(answer, len(ids))
		own, _ := srv.KVConnector() // the holder has the same one, or hands nothing over
		err = checkNull(own, err)
	}
	srv.backoffs.learn(holder.Replica, srv.cfg.Replica, handoff.KeepKV, causeOf(ctx, err), time.Now())
	if err != nil {
		return 0, fmt.Errorf("%s does not hand the KV over: %w", holder.Replica, causeOf(ctx, err))
	}
	lr.notAfter = asked.Add(handoff.Lease)
	_, err = call(policies.Target{}, lr.endpoint, kv.Continue(&q, dialect.Continuation{IDs: ids, Warm: true, Fetch: params}), loadtracker.Arrival{Input: policies.Tokens(len(ids)), HasKV: true}, true)
	srv.backoffs.learn(holder.Replica, srv.cfg.Replica, handoff.CopyKV, causeOf(ctx, err), time.Now())
	if err != nil {
		return 0, fmt.Errorf("the own engine does not fetch the KV: %w", causeOf(ctx, err))
	}
	if time.Since(asked) <= handoff.Lease {
		lr.notAfter = time.Time{} // fetched in time, whatever comes
	}
	return policies.Tokens(len(ids)), nil
}

// isLate reports whether the leg's first token, which has come, must not be used.
func (lr *legRequest) isLate() bool { return !lr.notAfter.IsZero() && time.Now().After(lr.notAfter) }

// errNotFetchable is returned for a request that has no form for another engine.
var errNotFetchable = fmt.Errorf("the request depends on its engine: %w", engineinfo.ErrNoConnector)
