package frontend

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/migrator/internal/handoff"
	"github.com/cascadeinfer/cascade/migrator/internal/loadtracker"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
)

// slowPrefill is how many times as long as the own engine would need a prefill replica may take to
// compute a prompt and hand it over, if that is more than half of Config.MigrationTimeout.
const slowPrefill = 3

// Prefills counts what became of prompts that prefill replicas should compute for the own engine,
// since New, where Config.FetchPrefill is set.
type Prefills struct {
	Fetched uint64            // prompts whose KV the own engine has fetched
	Tokens  uint64            // of these
	Failed  map[string]uint64 // that the own engine computes, by reason: deadline, left or failed
	Seconds float64           // for which requests waited, whatever came of it
}

// prefills is the counters of one server.
type prefills struct {
	mu     sync.Mutex
	counts Prefills
}

// Prefills returns the counters of prompts that prefill replicas should compute.
func (srv *Server) Prefills() Prefills {
	srv.prefills.mu.Lock()
	defer srv.prefills.mu.Unlock()
	c := srv.prefills.counts
	c.Failed = maps.Clone(c.Failed)
	return c
}

func (p *prefills) record(tokens int, took time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts.Seconds += took.Seconds()
	if err == nil {
		p.counts.Fetched++
		p.counts.Tokens += uint64(tokens)
		return
	}
	if p.counts.Failed == nil {
		p.counts.Failed = make(map[string]uint64)
	}
	reason := pullFailed
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		reason = pullDeadline
	case errors.Is(err, context.Canceled):
		reason = pullLeft
	}
	p.counts.Failed[reason]++
}

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
	req, err := srv.dialect().Parse(lr.endpoint, lr.body.bytes)
	if err != nil {
		return // the engine says what is wrong
	}
	ids := req.PromptIDs()
	if ids == nil {
		if ids, err = srv.tokenize(ctx, &req, engineHeaders(lr.header)); err != nil {
			return
		}
	}
	within, ok := srv.prefillPatience(len(ids))
	if !ok || len(ids) == 0 {
		return
	}
	begun, at := time.Now(), lr.target
	err = srv.checkHandoff(Migration{From: at.Replica, FromAddress: at.Address}, begun)
	if err == nil {
		err = srv.fetchPrefillFrom(ctx, lr, &req, at, ids, within)
	}
	srv.prefills.record(len(ids), time.Since(begun), err)
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
