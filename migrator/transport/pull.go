package transport

import (
	"context"
	"errors"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// Pull is an open pull from one peer. It is for one goroutine at a time. A nil Pull is closed.
type Pull struct {
	set       *Paths
	pair      Pair
	memory    *Memory
	offers    []Offer // not tried yet
	puller    Puller
	transport string
	failed    error // returned by every further Pull
}

// Open opens a pull into a memory with the best of the transports that a peer offers. The caller
// must close it.
func (s *Paths) Open(ctx context.Context, peer policies.ReplicaID, offers []Offer, memory *Memory) (*Pull, error) {
	p := &Pull{set: s, pair: s.pairWith(peer), memory: memory, offers: slices.Clone(offers)}
	if err := p.open(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

// open opens the best transport that has not been tried for this pull.
func (p *Pull) open(ctx context.Context) error {
	s := p.set
	last := errors.New("the two replicas have no transport in common")
	for {
		offered := make([]string, 0, len(p.offers))
		for _, o := range p.offers {
			offered = append(offered, o.Transport)
		}
		order := s.order(p.pair, offered)
		if len(order) == 0 {
			return last
		}
		at := slices.Index(offered, order[0].Name())
		offer := p.offers[at]
		p.offers = slices.Delete(p.offers, at, at+1)
		puller, err := order[0].Open(ctx, s.cfg.Self, offer)
		if err != nil {
			p.logFailure(ctx, "opening a transport failed", offer.Transport, err)
			s.recordFailure(ctx, p.pair, offer.Transport, err)
			last = err
			continue
		}
		// An engine that restarted has a new memory, in which the blocks belong to others.
		if s.memory() != p.memory {
			puller.Close()
			return errors.New("the engine was restarted; its reservation is lost")
		}
		p.puller, p.transport = puller, offer.Transport
		return nil
	}
}

// Transport returns the name of the transport in use.
func (p *Pull) Transport() string { return p.transport }

// maxTries is how often blocks are pulled that arrive without their checksums.
const maxTries = 3

// Pull pulls a plan. It pulls blocks that arrive without their checksums up to three times in all, and
// uses the next transport if one fails. corrupt counts the blocks that arrived without their checksums,
// over all tries. The error is a *CorruptError, with indices into the last try, if some never arrived
// intact. After any other error every further Pull fails.
func (p *Pull) Pull(ctx context.Context, plan Plan) (corrupt int, err error) {
	for range maxTries {
		err = p.pullOnce(ctx, plan)
		bad := (*CorruptError)(nil)
		if !errors.As(err, &bad) {
			return corrupt, err
		}
		corrupt += len(bad.Blocks)
		plan = pathPart(plan, bad.Blocks, len(p.memory.Regions))
	}
	return corrupt, err
}

// pullOnce pulls each block of a plan once over a transport that does not fail.
func (p *Pull) pullOnce(ctx context.Context, plan Plan) error {
	if len(plan.Src) == 0 {
		return nil
	}
	for p.failed == nil {
		stats, err := p.puller.Pull(ctx, plan)
		if err == nil {
			p.set.recordPull(p.pair, p.transport, stats)
			return nil
		}
		p.set.recordFailure(ctx, p.pair, p.transport, err)
		if bad := (*CorruptError)(nil); errors.As(err, &bad) {
			return err
		}
		p.puller.Close()
		p.logFailure(ctx, "pull failed", p.transport, err)
		if ctx.Err() != nil || p.open(ctx) != nil {
			p.failed = err
		}
	}
	return p.failed
}

// Outcome is what PullBlocks has done.
type Outcome struct {
	Transport string // that was used last; "" if none could be opened
	Corrupt   int    // blocks that arrived without their checksums, over all tries
}

// PullBlocks opens a pull, pulls a plan as Pull does, and closes the pull. When it returns, the memory
// does not change any more.
func (s *Paths) PullBlocks(ctx context.Context, peer policies.ReplicaID, offers []Offer, memory *Memory, plan Plan) (out Outcome, err error) {
	p, err := s.Open(ctx, peer, offers, memory)
	if err != nil {
		return out, err
	}
	defer p.Close()
	out.Corrupt, err = p.Pull(ctx, plan)
	out.Transport = p.Transport()
	return out, err
}

// pathPart returns the plan of some of the blocks of a plan.
func pathPart(p Plan, which []int, regions int) (out Plan) {
	for _, i := range which {
		out.Src, out.Dst = append(out.Src, p.Src[i]), append(out.Dst, p.Dst[i])
		out.Sums = append(out.Sums, p.Sums[i*regions:(i+1)*regions]...)
	}
	return out
}

// logFailure logs that a transport failed. One whose pull was cancelled did not fail.
func (p *Pull) logFailure(ctx context.Context, event, transport string, err error) {
	if !errors.Is(ctx.Err(), context.Canceled) {
		p.set.log.Warn(event, "transport", transport, "error", err)
	}
}

// Close ends the pull. When it returns, the memory does not change any more.
func (p *Pull) Close() {
	if p != nil {
		p.puller.Close()
	}
}
