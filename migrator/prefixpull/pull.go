package prefixpull

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/blocks"
	"github.com/cascadeinfer/cascade/migrator/paths"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// Pull copies what the holder's engine has of a prefix beyond the own engine's, and returns how many
// tokens that was. It is 0 without an error if the own engine has the whole prefix. After an error the
// own engine's cache is as it was, and a request computes its prompt.
func (c *Copier) Pull(ctx context.Context, holder policies.ReplicaID, p blocks.Prefix) (policies.Tokens, error) {
	select {
	case c.pulling <- struct{}{}:
	default:
		return 0, ErrBusy
	}
	if !c.cfg.CanReceive() {
		<-c.pulling
		return 0, ErrUnavailable
	}
	type result struct {
		tokens int
		err    error
	}
	done := make(chan result, 1)
	if !c.begin(func(run context.Context) {
		defer func() { <-c.pulling }()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(run, cancel)()
		job := &pullJob{c: c, name: reservationName(), holder: holder, prefix: p}
		tokens, err := job.pull(ctx)
		done <- result{tokens, err}
		if job.reserved && err != nil {
			c.release(run, job.name)
		}
	}) {
		<-c.pulling
		return 0, ErrUnavailable
	}
	select {
	case r := <-done:
		return policies.Tokens(r.tokens), r.err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// pullJob is one pull.
type pullJob struct {
	c        *Copier
	name     string // of the reservation
	holder   policies.ReplicaID
	prefix   blocks.Prefix
	reserved bool // the engine may have the reservation
}

// pull executes the pull. When it returns, no byte of the engine's memory changes any more.
func (in *pullJob) pull(ctx context.Context) (tokens int, err error) {
	e := in.c.cfg.Engine
	memory, mapped := e.Memory()
	d, described := e.Description()
	if !mapped || !described {
		return 0, blocks.ErrUnavailable
	}
	ids := in.prefix.IDs[:len(in.prefix.IDs)/d.BlockTokens*d.BlockTokens]
	in.prefix.IDs, in.reserved = ids, true
	pinned, err := e.PinPrefix(ctx, in.name, in.prefix, true)
	if err != nil {
		return 0, err
	}
	if m, _ := e.Memory(); m != memory || pinned.BlockTokens != d.BlockTokens {
		return 0, fmt.Errorf("%w: the engine was restarted", blocks.ErrUnavailable)
	}
	if pinned.Cached == len(ids) {
		return 0, e.CommitPrefix(ctx, in.name, pinned.Cached) // frees it
	}
	fetching, end := context.WithCancel(ctx)
	defer end() // the holder frees its blocks
	answer, err := in.c.cfg.Network.FetchPrefix(fetching, in.holder, &api.FetchPrefixRequest{
		Model: in.prefix.Model, CacheSalt: in.prefix.Salt, Ids: ids, First: uint64(pinned.Cached), Fingerprint: d.Fingerprint,
	})
	if err != nil {
		return 0, cause(err)
	}
	plan, tokens, err := planPull(answer, pinned, len(ids), len(memory.Regions))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", in.holder, err)
	}
	offers, err := paths.DecodeOffers(in.holder, answer.GetOffers())
	if err != nil {
		return 0, fmt.Errorf("%s: %w", in.holder, err)
	}
	begun := time.Now()
	if err := in.c.pullBlocks(ctx, in.holder, offers, memory, plan); err != nil {
		return 0, err
	}
	if err := in.c.cfg.Pace(ctx, begun, int64(tokens-pinned.Cached)*int64(d.TokenBytes)); err != nil {
		return 0, err
	}
	if err := e.CommitPrefix(ctx, in.name, tokens); err != nil {
		return 0, err
	}
	return tokens - pinned.Cached, nil
}

// cause maps the answer of a holder that refuses to one of this package's errors.
func cause(err error) error {
	switch status.Code(err) {
	case codes.NotFound:
		return fmt.Errorf("%w: %w", ErrGone, err)
	case codes.ResourceExhausted:
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return err
}

// planPull validates a holder's answer and returns which blocks are pulled, and how many tokens of the
// prefix the engine has then.
func planPull(a *api.FetchPrefixAnswer, pinned blocks.PinnedPrefix, most, regions int) (transport.Plan, int, error) {
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

// pullBlocks pulls the blocks of a plan, those that arrive without their checksums again.
func (c *Copier) pullBlocks(ctx context.Context, holder policies.ReplicaID, offers []transport.Offer, memory *transport.Memory, plan transport.Plan) error {
	pull, err := c.cfg.Paths().Open(ctx, holder, offers, memory)
	if err != nil {
		return err
	}
	defer pull.Close()
	for range maxTries {
		err = pull.Pull(ctx, plan)
		bad := (*transport.CorruptError)(nil)
		if !errors.As(err, &bad) {
			return err
		}
		plan = part(plan, bad.Blocks, len(memory.Regions))
	}
	return err
}

// part returns the plan of some of the blocks of a plan.
func part(p transport.Plan, which []int, regions int) (out transport.Plan) {
	for _, i := range which {
		out.Src, out.Dst = append(out.Src, p.Src[i]), append(out.Dst, p.Dst[i])
		out.Sums = append(out.Sums, p.Sums[i*regions:(i+1)*regions]...)
	}
	return out
}
