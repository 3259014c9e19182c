package frontend

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/cascadeinfer/cascade/migrator/internal/loadtracker"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/migrator/internal/session"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/admission"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// LocalLeg is a request that runs on the own engine, whichever front end owns it.
type LocalLeg struct {
	// Request has the counts of the engine's answer so far; its ID is the
	// stream's at its front end. While Output is 0 it waits for its first token.
	Request  policies.Request
	Name     string // the engine's name for it: "<stream id>#<epoch>"
	FrontEnd policies.ReplicaID
	// Epoch is the stream's as far as this server knows; see AdvanceEpoch.
	Epoch policies.Epoch
	// Pinned says why the request cannot migrate; policies.NotPinned if it can.
	Pinned policies.PinReason
	Since  time.Time // when it came to this engine
	Last   time.Time // when its last token came; zero before the first one
	Trace  string    // the traceparent of the span that it belongs to; "" for none
}

// LocalLegs returns what runs on the own engine: requests of own clients and legs
// of peers, in no order, without warm-ups, which have no name.
func (srv *Server) LocalLegs() []LocalLeg {
	all := srv.registeredLegs()
	out := make([]LocalLeg, 0, len(all))
	for _, r := range all {
		if r.name != "" {
			out = append(out, r.snapshot())
		}
	}
	return out
}

// registeredLegs returns all legs on the own engine.
func (srv *Server) registeredLegs() []*localLeg {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	return slices.Collect(maps.Keys(srv.localLegs))
}

// AdvanceEpoch sets the epoch of a peer's stream that stays on the own engine
// after a failed migration. Epochs never go back. Streams of own clients have
// theirs already.
func (srv *Server) AdvanceEpoch(stream string, epoch policies.Epoch) {
	for _, r := range srv.registeredLegs() {
		if r.request.ID == stream && r.stream == nil {
			for old := r.epoch.Load(); old < uint64(epoch); old = r.epoch.Load() {
				r.epoch.CompareAndSwap(old, uint64(epoch))
			}
		}
	}
}

// localLeg is a request at the own engine, from before it is sent to its end.
type localLeg struct {
	// Fixed.
	server    *Server
	frontEnd  policies.ReplicaID
	stream    *Stream // of the own front end, else nil
	request   policies.Request
	minTokens policies.Tokens
	name      string
	since     time.Time
	trace     string // as in LocalLeg
	warmup    bool   // a leg without a name, whose tokens are discarded
	work      *loadtracker.Work
	call      *call
	span      trace.Span // of the call to the engine; nil without tracing

	share     admission.Entry   // of the admitted work; under the lock of that
	body      int               // bytes of the body, whose text the engine tokenizes
	plain     bool              // its answer comes as a whole
	passed    bool              // its answer is not parsed
	root      prefix.Hash       // that the ids of its prompt extend
	chain     loadtracker.Chain // of its ids; used by wireLeg.next only
	fetches   bool              // its engine fetches the prompt's KV from another one
	transfers bool              // KV travels from or to its engine until its first token
	earlier   policies.Tokens   // output of earlier legs
	epoch     atomic.Uint64
	idsHidden atomic.Bool               // its tokens come without ids
	frozen    atomic.Bool               // a migration has stopped it between two steps
	pulling   atomic.Bool               // it is sent to its engine after a prefix pull
	answer    atomic.Pointer[readAhead] // nil before it begins
	ended     atomic.Bool
}

// registerLeg registers a leg that is about to be sent to the own engine.
func (srv *Server) registerLeg(lr *legRequest, l *call, admitted admission.Entry) *localLeg {
	r := &localLeg{
		share: admitted, server: srv, frontEnd: lr.frontEnd, stream: lr.stream, request: lr.request,
		minTokens: lr.minTokens, name: lr.name(), since: time.Now(), trace: lr.header.Get(traceparent), call: l,
		warmup: lr.keeps || lr.request.ID == "" && lr.arrival.Input > 0, plain: lr.plain, passed: lr.passed,
		root: lr.root, fetches: lr.fetches, transfers: lr.transfers(), earlier: lr.arrival.Output,
		work: srv.tracker.Begin(lr.arrival),
	}
	r.epoch.Store(uint64(lr.epoch))
	r.idsHidden.Store(lr.plain)
	if lr.body != nil {
		r.body = int(lr.body.size())
	}
	if r.transfers {
		srv.transferred.Store(&r.since) // it may be over before the next check
	}
	srv.mu.Lock()
	srv.localLegs[r] = struct{}{}
	srv.mu.Unlock()
	r.observe(LegObserver.LegBegan)
	return r
}

// LegObserver watches the requests on the own engine. Many goroutines call it at once; it must neither block nor keep
// the legs.
type LegObserver interface {
	// LegBegan is called when a request is about to be sent to the own engine.
	LegBegan(*LocalLeg)
	// LegEnded is called when a request has ended there and no other engine continues it.
	LegEnded(*LocalLeg)
}

// observe calls the observer for the leg, unless it is a warm-up.
func (r *localLeg) observe(event func(LegObserver, *LocalLeg)) {
	if to := r.server.cfg.LegObserver; to != nil && r.name != "" {
		leg := r.snapshot()
		event(to, &leg)
	}
}

// awaitsKV reports whether the leg has no token yet because its engine fetches KV from another one,
// which may take for ever and says nothing about its own engine.
func (r *localLeg) awaitsKV() bool {
	return r.pulling.Load() || r.fetches && r.work.Counts().Output <= r.earlier
}

// inTransfer reports whether KV may travel from or to the own engine for the leg now.
func (r *localLeg) inTransfer() bool {
	return r.pulling.Load() || r.transfers && r.work.Counts().Output <= r.earlier
}

// unregister removes the leg, once; moved says that another engine continues the
// request. The end of a warm-up is never the end of a request.
func (r *localLeg) unregister(moved bool) {
	if r.ended.Swap(true) {
		return
	}
	if moved || r.warmup {
		r.work.EndMoved()
	} else {
		r.work.End()
	}
	if !moved {
		r.observe(LegObserver.LegEnded)
	}
	r.endSpan(moved)
	r.server.admission.update(func(l *admission.Ledger) { l.End(&r.share, r.work.Counts().Output, !moved && !r.warmup) })
	r.server.mu.Lock()
	delete(r.server.localLegs, r)
	r.server.mu.Unlock()
}

// endWhole ends a leg whose answer has been read to its end. It takes the usage from seen, unless that is nil.
func (r *localLeg) endWhole(seen *prefixBuffer) {
	if u, ok := openai.ParseUsage(seen.whole()); ok {
		r.setUsage(u)
	}
	r.unregister(false)
}

func (r *localLeg) snapshot() LocalLeg {
	n := r.work.Counts()
	q := r.request
	q.Input, q.Output, q.Cached, q.Estimated = n.Input, n.Output, n.Cached, !n.Exact
	epoch := policies.Epoch(r.epoch.Load())
	if r.stream != nil {
		epoch = r.stream.currentHolder().Epoch
	}
	return LocalLeg{
		Request: q, Name: r.name, FrontEnd: r.frontEnd, Epoch: epoch, Pinned: r.pinReason(), Since: r.since,
		Last: n.Last, Trace: r.trace,
	}
}

// pinReason returns why the request must stay.
func (r *localLeg) pinReason() policies.PinReason {
	q := r.request
	q.Features = session.FeaturesAfter(q.Features, r.minTokens, r.work.Counts().Output)
	if r.idsHidden.Load() {
		q.Features |= policies.HiddenTokens
	}
	return policies.Movable(q)
}

// rescuable reports whether the request's front end may be able to continue it at
// another engine.
func (r *localLeg) rescuable() bool {
	return r.pinReason() == policies.NotPinned && (r.stream == nil || r.server.cfg.Rescuer != nil)
}

// call is one request to an engine or a peer. Any goroutine can abort it; reading
// the answer then fails with the cause.
type call struct {
	cancel  context.CancelFunc
	done    <-chan struct{} // closed after cancel
	cause   atomic.Pointer[error]
	onBegin func()      // called when the transport has a connection for the call; may be nil
	begun   atomic.Bool // an engine may have got the request; see withBegin
}

// newCall returns a call and its context.
func newCall(parent context.Context) (context.Context, *call) {
	ctx, cancel := context.WithCancel(parent)
	return ctx, &call{cancel: cancel, done: ctx.Done()}
}

// abort ends the call; the first cause counts.
func (l *call) abort(why error) {
	l.cause.CompareAndSwap(nil, &why)
	l.cancel()
}

// causeOr returns the cause with which the call was aborted, else err.
func (l *call) causeOr(err error) error {
	if cause := l.cause.Load(); cause != nil {
		return *cause
	}
	return err
}
