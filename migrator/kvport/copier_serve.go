package kvport

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	spancodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// Serve pins what this replica's engine has cached of a prefix, sends one answer by which the peer can
// pull it, and returns when the peer ends the call (ctx), or after 30 s; then it releases the blocks.
// peer.Config.ServePrefix is this method. Its errors are gRPC statuses: NOT_FOUND if the engine has no more than the peer,
// RESOURCE_EXHAUSTED beyond MaxConcurrent, FAILED_PRECONDITION if the engines store KV differently,
// UNAVAILABLE while the engine is, UNIMPLEMENTED if it shows no prefix cache.
func (c *Copier) Serve(ctx context.Context, from policies.ReplicaID, q *api.FetchPrefixRequest, answer func(*api.FetchPrefixAnswer) error) (err error) {
	ctx, answer, end := c.startServeSpan(ctx, from, q, answer)
	defer func() { end(err) }()
	// The peer's call may end before this: the blocks are released on a goroutine of Run.
	done := make(chan error, 1)
	switch c.begin(c.serving, func(run context.Context) {
		ctx, cancel := context.WithTimeout(ctx, serveTimeout)
		defer cancel()
		defer context.AfterFunc(run, cancel)()
		name := reservationName()
		late, err := c.serve(ctx, run, name, from, q, answer)
		if late {
			done <- err // the peer does not wait for the second release
		}
		c.release(run, name, late)
		if !late {
			done <- err
		}
	}) {
	case ErrBusy:
		c.countRefusal()
		return status.Error(codes.ResourceExhausted, ErrBusy.Error())
	case ErrNoMemory:
		return status.Error(codes.Unavailable, "the migrator is not running")
	}
	return <-done
}

// startServeSpan starts the span of a prefix that a peer asks for, below the peer's: "prefix.serve". The
// answer that it returns records what is offered; end ends the span with the outcome.
func (c *Copier) startServeSpan(ctx context.Context, from policies.ReplicaID, q *api.FetchPrefixRequest, answer func(*api.FetchPrefixAnswer) error) (_ context.Context, recording func(*api.FetchPrefixAnswer) error, end func(error)) {
	ctx, span := c.cfg.Tracer.Start(frontend.ContextWithTrace(ctx, q.GetTrace()), "prefix.serve", trace.WithAttributes(
		attribute.String("cascade.from", q.GetTo()), attribute.String("cascade.to", string(from))))
	recording = func(a *api.FetchPrefixAnswer) error {
		span.SetAttributes(attribute.Int64("cascade.tokens", int64(a.GetTokens()-q.GetFirst())))
		span.AddEvent("offered")
		return answer(a)
	}
	return ctx, recording, func(err error) {
		if err != nil {
			span.RecordError(err)
			span.SetStatus(spancodes.Error, "the peer's engine computes the prompt")
		}
		span.End()
	}
}

// serve pins the prefix under a name, offers it, and returns when no peer reads it any more.
func (c *Copier) serve(ctx, run context.Context, name string, from policies.ReplicaID, q *api.FetchPrefixRequest, answer func(*api.FetchPrefixAnswer) error) (late bool, err error) {
	offered := false
	defer func() {
		if !offered {
			c.countRefusal()
		}
	}()
	e := c.cfg.Engine
	memory, mapped := e.Memory()
	d, described := e.Description()
	switch {
	case !mapped || !described:
		return false, refusal(ErrUnavailable)
	case q.GetFingerprint() != d.Fingerprint:
		return false, refusal(ErrDifferent)
	case q.GetFirst()%uint64(d.BlockTokens) != 0 || q.GetFirst() > uint64(len(q.GetIds())):
		return false, status.Errorf(codes.InvalidArgument, "first is %d of %d: must be the end of a block of %d", q.GetFirst(), len(q.GetIds()), d.BlockTokens)
	}
	pinned, late, err := c.pin(run, name, Prefix{Model: q.GetModel(), Salt: q.GetCacheSalt(), IDs: q.GetIds()}, false)
	switch {
	case err != nil:
		return late, refusal(err)
	case ctx.Err() != nil: // the peer has ended the call
		return false, status.FromContextError(ctx.Err()).Err()
	case uint64(pinned.Cached) <= q.GetFirst() || pinned.BlockTokens != d.BlockTokens:
		return false, status.Errorf(codes.NotFound, "%d tokens of the prefix are cached", pinned.Cached)
	}
	wanted := pinned.Blocks[int(q.GetFirst())/d.BlockTokens:]
	sums, err := transport.ChecksumBlocks(e, wanted)
	// The blocks and the checksums are of one process's memory: what a later one has in blocks
	// of these numbers is something else.
	if m, _ := e.Memory(); err == nil && m != memory {
		err = ErrUnavailable
	}
	if err != nil {
		return false, refusal(err)
	}
	set, grant := c.cfg.Paths, transport.Grant{Migration: name, Receiver: from, Deadline: time.Now().Add(serveTimeout)}
	offers := set.Export(grant)
	defer set.Revoke(name) // before the release
	if len(offers) == 0 {
		return false, status.Error(codes.Unavailable, "no transport can serve the KV")
	}
	set.Announce(name, wanted)
	c.mu.Lock()
	c.served.Prefixes++
	c.served.Tokens += uint64(pinned.Cached) - q.GetFirst()
	c.mu.Unlock()
	offered = true
	if err := answer(&api.FetchPrefixAnswer{Offers: transport.EncodeOffers(offers), Tokens: uint64(pinned.Cached), Blocks: wanted, Sums: sums}); err != nil {
		return false, err
	}
	<-ctx.Done()
	return false, nil
}

func (c *Copier) countRefusal() {
	c.mu.Lock()
	c.served.Refused++
	c.mu.Unlock()
}
