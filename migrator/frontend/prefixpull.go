package frontend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/cascadeinfer/cascade/migrator/internal/loadtracker"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/policies/place"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// PromptPrefix is the beginning of a prompt. Engines find it only among prompts of the same Model
// and Salt.
type PromptPrefix struct {
	Model string // as the request names it
	Salt  string // the request's cache_salt, "" for none
	IDs   []uint32
}

// PrefixHolders knows which peers hold the KV of prompts' beginnings.
type PrefixHolders interface {
	// LongestPrefix returns the peer that holds the longest prefix of a prompt, given by its steps, and the prefix's
	// length; 0 if no peer is known to hold one. It is called by many requests at once, on their goroutines, and must
	// not block. A wrong answer costs time only.
	LongestPrefix(steps []prefix.Step) (policies.Target, policies.Tokens)
}

// PrefixCopier copies KV between engines that serve their block tables; migrator/kvport
// implements it.
type PrefixCopier interface {
	// Copy copies the part of a prefix that the holder's engine has and the own engine lacks. It returns the tokens
	// copied and the transport used, at the latest when ctx ends. After an error the own engine is unchanged.
	Copy(ctx context.Context, holder policies.ReplicaID, p PromptPrefix) (tokens policies.Tokens, transport string, err error)
}

// PulledPrefix is the outcome of a prefix pull that was tried.
type PulledPrefix struct {
	Request   string             // its name in logs and migrations; "" for none
	FrontEnd  policies.ReplicaID // of the request
	Holder    policies.ReplicaID
	Handoff   bool            // by the engines' KV connectors
	Transport string          // that carried the KV; "" unless it was copied between block tables
	Tokens    policies.Tokens // that were pulled, or of a failed pull those that were to be
	Start     time.Time
	Duration  time.Duration
	Err       error // nil if it was pulled
}

// PrefixPull configures prefix pulls. A pull copies the KV of a prompt's beginning from a peer's cache before the
// request starts at the own engine, where a copy is predicted to be faster than computing the KV. Holders, Link and
// TokenBytes are required.
type PrefixPull struct {
	Holders PrefixHolders
	// Link returns the link by which KV comes from a peer. It must not block.
	Link func(peer policies.ReplicaID) links.Path
	// TokenBytes is the size of one token's KV.
	TokenBytes policies.Bytes
	// Copier copies between block tables. nil: the engine has none, and prefixes are handed over
	// by KV connectors, if Config.Handoff allows it.
	Copier PrefixCopier
	// MaxConcurrent bounds the pulls at a time; 0 means 4.
	MaxConcurrent int
	// Reason names the cause of a failed Copy for metrics, one of few; nil means "failed".
	Reason func(error) string
	// OnPull is called after each pull that was tried, on the request's goroutine. It must not
	// block. nil ignores them.
	OnPull func(PulledPrefix)
}

// Pulls counts what became of requests that were to begin with KV from another replica, since New.
type Pulls struct {
	Pulled    uint64            // that began with it
	Tokens    uint64            // that were pulled for them
	Recompute uint64            // that were not tried: computing is about as fast, or faster
	Failed    map[string]uint64 // that were tried and failed, by reason; the own engine computes
	Seconds   float64           // for which requests waited, whatever came of it
}

// The reasons of failed pulls that the front end knows.
const (
	pullBusy     = "busy"     // too many pulls at a time
	pullDeadline = "deadline" // computing would have been as fast
	pullLeft     = "left"     // the client has left, or the engine is away
	pullUnknown  = "unknown_ids"
	pullFailed   = "failed"
)

// pullCounts counts the Pulls of one kind. The zero value counts nothing yet.
type pullCounts struct {
	mu  sync.Mutex
	now Pulls
}

func (p *pullCounts) read() Pulls {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.now
	c.Failed = maps.Clone(c.Failed)
	return c
}

// update calls do with the counters locked.
func (p *pullCounts) update(do func(*Pulls)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do(&p.now)
}

// record counts a pull that was tried. reason says why it failed, "" that it did not.
func (p *pullCounts) record(tokens policies.Tokens, took time.Duration, reason string) {
	p.update(func(n *Pulls) {
		n.Seconds += took.Seconds()
		if reason == "" {
			n.Pulled++
			n.Tokens += uint64(tokens)
			return
		}
		if n.Failed == nil {
			n.Failed = make(map[string]uint64)
		}
		n.Failed[reason]++
	})
}

// defaultPulls is the default of PrefixPull.MaxConcurrent, that of migrations.
const defaultPulls = 4

// maxPulls returns how many prefixes are pulled at a time.
func (c *Config) maxPulls() int {
	if c.PrefixPull == nil || c.PrefixPull.MaxConcurrent <= 0 {
		return defaultPulls
	}
	return c.PrefixPull.MaxConcurrent
}

// PrefixPulls returns the counters of prefix pulls, and Prefills those of prompts that prefill replicas should compute
// for the own engine, where Config.FetchPrefill is set.
func (srv *Server) PrefixPulls() Pulls { return srv.pulls.read() }
func (srv *Server) Prefills() Pulls    { return srv.prefills.read() }

// pullPrefix copies the beginning of a leg's prompt from a peer, if the peer holds more of it than the own engine and
// the copy pays. It is called before the leg is sent to the own engine, and delays it by no more than computing the
// tokens would take. The leg is sent even if the copy fails.
func (srv *Server) pullPrefix(ctx context.Context, lr *legRequest, leg *localLeg) {
	c, known := srv.cfg.PrefixPull, lr.prompt // once at most, as openLeg tries the own engine once
	if c == nil || known == nil || len(known.steps) == 0 {
		return
	}
	ids := known.ids
	known.ids = nil // they may be long, and the leg may wait in a queue
	holder, held := c.Holders.LongestPrefix(known.steps)
	if holder = srv.normalize(holder); holder.Address == "" || held <= known.cached {
		return
	}
	if c.Copier == nil && srv.checkHandoff(Migration{From: holder.Replica, FromAddress: holder.Address}, time.Now()) != nil {
		return // there is no way
	}
	link := c.Link(holder.Replica)
	d := place.DecidePull(place.PullOffer{Own: known.cached, Held: held, TokenBytes: c.TokenBytes, Rate: link.Rate, Latency: link.Latency, Cost: srv.cfg.Cost})
	if !d.Pull {
		srv.pulls.update(func(n *Pulls) { n.Recompute++ })
		return
	}
	select {
	case srv.pulling <- struct{}{}:
		defer func() { <-srv.pulling }()
	default:
		srv.pulls.record(0, 0, pullBusy)
		return
	}
	leg.pulling.Store(true)
	defer leg.pulling.Store(false)
	out := PulledPrefix{Request: lr.request.ID, FrontEnd: lr.frontEnd, Holder: holder.Replica, Handoff: c.Copier == nil, Tokens: d.Tokens, Start: time.Now()}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(d.Recompute)*time.Microsecond)
	defer cancel()
	ctx, end := srv.startPullSpan(ctx, &out)
	tokens, by, err := srv.pullHeld(ctx, lr, ids, holder, held)
	out.Duration, out.Transport, out.Err = time.Since(out.Start), by, err
	if err == nil {
		out.Tokens = tokens
	}
	srv.pulls.record(tokens, out.Duration, pullReason(err, c.Reason))
	end()
	if c.OnPull != nil {
		c.OnPull(out)
	}
	if err != nil {
		srv.requestLog(lr.header).Info("prefix not pulled; the engine computes it", "request", lr.request.ID, "holder", holder.Replica, "tokens", d.Tokens, "error", err)
	}
}

// startPullSpan starts the span of a prefix pull, below the request's. end ends it with the outcome.
func (srv *Server) startPullSpan(ctx context.Context, out *PulledPrefix) (_ context.Context, end func()) {
	if srv.cfg.Tracer == nil {
		return ctx, func() {}
	}
	ctx, span := srv.cfg.Tracer.Start(ctx, "prefix.pull", trace.WithTimestamp(out.Start), trace.WithAttributes(
		attribute.String("cascade.request", out.Request), attribute.String("cascade.from", string(out.Holder)), attribute.String("cascade.to", string(srv.cfg.Replica))))
	return ctx, func() {
		span.SetAttributes(attribute.Int64("cascade.tokens", int64(out.Tokens)), attribute.Bool("cascade.handoff", out.Handoff), attribute.String("cascade.transport", out.Transport))
		if out.Err != nil {
			span.RecordError(out.Err)
			span.SetStatus(codes.Error, "the engine computes the prompt")
		}
		span.End()
	}
}

// pullHeld copies the first tokens of a leg's prompt, which the holder has, to the own engine. ids are the prompt's,
// nil if they are not known; by is the transport.
func (srv *Server) pullHeld(ctx context.Context, lr *legRequest, ids []uint32, holder policies.Target, held policies.Tokens) (tokens policies.Tokens, by string, err error) {
	req, ids, err := srv.parseAgain(ctx, lr, ids)
	if err != nil {
		return 0, "", err
	}
	ids = ids[:min(held, policies.Tokens(len(ids)))]
	if c := srv.cfg.PrefixPull.Copier; c != nil {
		return c.Copy(ctx, holder.Replica, PromptPrefix{Model: req.Model, Salt: strings.Clone(req.CacheSalt), IDs: ids})
	}
	tokens, err = srv.handPrefixOver(ctx, lr, &req, holder, ids, loadtracker.Arrival{Input: policies.Tokens(len(ids)), HasKV: true})
	return tokens, "", err
}

// errNoIDs is returned for a prompt whose token ids are not known.
var errNoIDs = errors.New("the token ids of the prompt are not known")

// parseAgain parses the body of a leg again: the parsed request was dropped to save memory. It also returns
// the prompt's token ids: the given ones, or, if they are nil, those in the body or from the engine.
func (srv *Server) parseAgain(ctx context.Context, lr *legRequest, ids []uint32) (openai.Request, []uint32, error) {
	req, err := srv.dialect().Capabilities().Fields.Parse(lr.endpoint, lr.body.bytes)
	if err != nil || ids != nil {
		return req, ids, err
	}
	if ids = req.PromptIDs(); ids == nil {
		if ids, err = srv.tokenize(ctx, &req, engineHeaders(lr.header)); err != nil {
			err = fmt.Errorf("%w: %w", errNoIDs, err)
		}
	}
	return req, ids, err
}

// pullReason returns the reason of a failed pull, "" if err is nil. named names other causes; nil means "failed".
func pullReason(err error, named func(error) string) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, context.DeadlineExceeded):
		return pullDeadline
	case errors.Is(err, context.Canceled):
		return pullLeft
	case errors.Is(err, errNoIDs):
		return pullUnknown
	case named != nil:
		return cmp.Or(named(err), pullFailed)
	}
	return pullFailed
}
