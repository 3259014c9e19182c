package kvport

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// Pulled is a prefix that was copied.
type Pulled struct {
	Tokens    policies.Tokens // beyond those that the own engine had
	Transport string          // that carried the KV; "" if none had to be copied
}

// Pull copies what the holder's engine has of a prefix beyond the own engine's. It copies nothing, without
// an error, if the own engine has the whole prefix. After an error the own engine's cache is as it was, and
// a request computes its prompt.
func (c *Copier) Pull(ctx context.Context, holder policies.ReplicaID, p Prefix) (Pulled, error) {
	if !c.cfg.CanReceive() {
		return Pulled{}, ErrNoMemory
	}
	type result struct {
		pulled Pulled
		err    error
	}
	done := make(chan result, 1)
	err := c.begin(c.pulling, func(run context.Context) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(run, cancel)()
		job := &pullJob{c: c, name: reservationName(), holder: holder, prefix: p}
		pulled, err := job.pull(ctx, run)
		done <- result{pulled, err}
		if job.reserved && err != nil {
			c.release(run, job.name, job.late)
		}
	})
	if err != nil {
		return Pulled{}, err
	}
	select {
	case r := <-done:
		return r.pulled, r.err
	case <-ctx.Done():
		return Pulled{}, context.Cause(ctx)
	}
}

// pullJob is one pull.
type pullJob struct {
	c        *Copier
	name     string // of the reservation
	holder   policies.ReplicaID
	prefix   Prefix
	reserved bool // the engine may have the reservation
	late     bool // it may make it yet
}

// pull executes the pull. When it returns, no byte of the engine's memory changes any more.
func (in *pullJob) pull(ctx, run context.Context) (out Pulled, err error) {
	e := in.c.cfg.Engine
	memory, mapped := e.Memory()
	d, described := e.Description()
	if !mapped || !described {
		return out, ErrUnavailable
	}
	ids := in.prefix.IDs[:len(in.prefix.IDs)/d.BlockTokens*d.BlockTokens]
	in.prefix.IDs, in.reserved = ids, true
	pinned, late, err := in.c.pin(run, in.name, in.prefix, true)
	if in.late = late; err != nil {
		return out, err
	}
	if m, _ := e.Memory(); m != memory || pinned.BlockTokens != d.BlockTokens {
		return out, fmt.Errorf("%w: the engine was restarted", ErrUnavailable)
	}
	if pinned.Cached == len(ids) {
		return out, e.CommitPrefix(ctx, in.name, pinned.Cached) // frees it
	}
	fetching, end := context.WithCancel(ctx)
	defer end() // the holder frees its blocks
	answer, err := in.c.cfg.Network.FetchPrefix(fetching, in.holder, &api.FetchPrefixRequest{
		Model: in.prefix.Model, CacheSalt: in.prefix.Salt, Ids: ids, First: uint64(pinned.Cached), Fingerprint: d.Fingerprint,
		Trace: frontend.TraceOf(ctx),
	})
	if err != nil {
		return out, cause(err)
	}
	plan, tokens, err := planPull(answer, pinned, len(ids), len(memory.Regions))
	if err != nil {
		return out, fmt.Errorf("%s: %w", in.holder, err)
	}
	offers, err := transport.DecodeOffers(in.holder, answer.GetOffers())
	if err != nil {
		return out, fmt.Errorf("%s: %w", in.holder, err)
	}
	copied, err := in.c.cfg.Paths.PullBlocks(ctx, in.holder, offers, memory, plan)
	if err != nil {
		return out, err
	}
	if err := e.CommitPrefix(ctx, in.name, tokens); err != nil {
		return out, err
	}
	return Pulled{policies.Tokens(tokens - pinned.Cached), copied.Transport}, nil
}

// answers are the gRPC codes of a holder's refusals, and what its peer makes of them.
var answers = []struct {
	code codes.Code
	err  error
}{
	{codes.NotFound, ErrGone},
	{codes.ResourceExhausted, ErrBusy},
	{codes.FailedPrecondition, ErrDifferent},
	{codes.Unavailable, ErrUnavailable},
	{codes.Unimplemented, ErrNoPrefixes},
	{codes.Unavailable, transport.ErrEngineAway},
	{codes.DeadlineExceeded, context.DeadlineExceeded},
}

// cause maps the answer of a holder that refuses to one of this package's errors.
func cause(err error) error {
	code := status.Code(err)
	for _, a := range answers {
		if a.code == code {
			return fmt.Errorf("%w: %w", a.err, err)
		}
	}
	return err
}

// refusal maps an error to the answer by which a peer learns its reason.
func refusal(err error) error {
	for _, a := range answers {
		if errors.Is(err, a.err) {
			return status.Error(a.code, err.Error())
		}
	}
	return status.Error(codes.Internal, err.Error())
}

// planPull validates a holder's answer and returns which blocks are pulled, and how many tokens of the
// prefix the engine has then.
func planPull(a *api.FetchPrefixAnswer, pinned PinnedPrefix, most, regions int) (transport.Plan, int, error) {
	size := pinned.BlockTokens
	first, last := pinned.Cached/size, int(min(a.GetTokens(), uint64(most)))/size
	switch {
	case a.GetTokens() > uint64(most) || a.GetTokens()%uint64(size) != 0 || last <= first:
		return transport.Plan{}, 0, fmt.Errorf("invalid answer: %d tokens of a prefix of %d, of which %d are wanted", a.GetTokens(), most, most-pinned.Cached)
	case len(a.GetBlocks()) != last-first || len(a.GetSums()) != (last-first)*regions:
		return transport.Plan{}, 0, fmt.Errorf("invalid answer: %d blocks and %d checksums for positions %d to %d", len(a.GetBlocks()), len(a.GetSums()), pinned.Cached, a.GetTokens())
	}
	return transport.Plan{Src: a.GetBlocks(), Dst: pinned.Blocks[first:last], Sums: a.GetSums()}, last * size, nil
}
