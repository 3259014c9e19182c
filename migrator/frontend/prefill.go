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

// slowPrefill is how many times as long as the own engine would need a prefill replica may take to
// compute a prompt and hand it over, if that is more than half of Config.MigrationTimeout.
const slowPrefill = 3

// fetchPrefill has the prefill replica where a request was placed compute its prompt, and the own
// engine fetch the KV. Then the request begins at the own engine, whatever came of it: at worst
// that one computes the prompt. The prefill replica's engine gets one request for one token, which
// also asks it to keep the KV: it generates nothing beside, and is not asked a second time while
// other prompts wait there.
//
// A request keeps its placement, and moves with its first token, if the ids of its prompt are not
// known, or if its prompt takes so long that the holder's lease may be over by then.
func (srv *Server) fetchPrefill(ctx context.Context, lr *legRequest) {
	if srv.cfg.FetchPrefill == nil || !lr.target.Prefill || lr.target.Address == "" || !srv.cfg.FetchPrefill() {
		return
	}
	req, ids, err := srv.parseAgain(ctx, lr, nil)
	within, ok := srv.prefillPatience(len(ids))
	if err != nil || !ok || len(ids) == 0 {
		return
	}
	begun, at := time.Now(), lr.target
	err = srv.checkHandoff(Migration{From: at.Replica, FromAddress: at.Address}, begun)
	if err == nil {
		err = srv.fetchPrefillFrom(ctx, lr, &req, at, ids, within)
	}
	srv.prefills.record(policies.Tokens(len(ids)), time.Since(begun), pullReason(err, nil))
	if err == nil {
		// It has arrived at the prefill replica, and goes on here.
		lr.arrival = loadtracker.Arrival{Input: policies.Tokens(len(ids)), HasKV: true}
	} else if ctx.Err() == nil {
		srv.requestLog(lr.header).Info("prompt not fetched from the prefill replica; the engine computes it", "request", lr.request.ID, "from", at.Replica, "tokens", len(ids), "error", err)
	}
	if err == nil || !lr.notAfter.IsZero() {
		lr.prompt = nil // no prefix is pulled: it is here, or a fetch of it may still be under way
	}
	if lr.target = (policies.Target{}); srv.cfg.OnPrefill != nil && ctx.Err() == nil {
		srv.cfg.OnPrefill(at.Replica, err == nil)
	}
}

// prefillPatience returns how long a prefill replica may take to hand over the KV of so many
// tokens, and false if it may need most of its lease to compute them.
func (srv *Server) prefillPatience(tokens int) (time.Duration, bool) {
	n, c := float64(tokens), srv.cfg.Cost
	alone := time.Duration((float64(c.D2*n) + float64(c.D3*n*n)) * float64(time.Second))
	return min(handoff.Deadline, max(srv.cfg.MigrationTimeout/2, slowPrefill*alone)), alone <= handoff.Deadline/2
}

// fetchPrefillFrom executes fetchPrefill. The loss of the prefill replica ends it at once.
func (srv *Server) fetchPrefillFrom(ctx context.Context, lr *legRequest, req *openai.Request, at policies.Target, ids []uint32, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	l := &call{cancel: cancel}
	lr.stream.setOpening(at.Replica, l)
	defer lr.stream.clearOpening(l)
	_, err := srv.handPrefixOver(ctx, lr, req, at, ids, loadtracker.Arrival{Estimate: policies.Tokens(len(ids))})
	if err != nil {
		err = l.causeOr(err)
	}
	return err
}

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
