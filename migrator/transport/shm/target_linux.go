package shm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/migrator/internal/localsocket"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

var errClosed = errors.New("the puller is closed")

// Open presents a ticket, and maps the source's pool. See transport.Target.
func (t *Transport) Open(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (transport.Puller, error) {
	p, err := t.open(ctx, receiver, offer)
	if err != nil {
		return nil, fmt.Errorf("shm transport: open %s: %w", offer.Address, err)
	}
	return p, nil
}

func (t *Transport) open(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (_ *puller, err error) {
	if offer.Transport != t.Name() {
		return nil, fmt.Errorf("an offer for transport %q", offer.Transport)
	}
	p := &puller{owner: t}
	defer func() {
		if err != nil {
			p.give()
		}
	}()
	if p.local, err = transport.Hold(t.config.Pool); err != nil {
		return nil, err
	}
	if p.session, err = localsocket.Open(ctx, suffix, receiver, offer); err != nil {
		return nil, err
	}
	p.remote = p.session.Layout
	file := p.session.File
	if file == nil {
		return nil, errors.New("the source sent no file")
	}
	defer file.Close()
	if err := p.remote.Matches(p.local.Layout); err != nil {
		return nil, err
	}
	if p.mapping, err = t.mappings.open(file, p.session.Size); err != nil {
		return nil, err
	}
	p.memory = transport.Memory{Layout: p.remote, Bytes: p.mapping.bytes}
	return p, nil
}

// puller is one open move: a connection and a mapping.
type puller struct {
	owner   *Transport
	session *localsocket.Session
	remote  transport.Layout
	local   *transport.Memory
	// The source's pool, as mapped.
	mapping *mapping
	memory  transport.Memory

	closing atomic.Bool
	once    sync.Once

	mu   sync.Mutex // held by Pull, and by Close when it gives back
	bad  []int
	over error // why the puller is of no use any more
}

// Pull copies out of the mapping. See transport.Puller.
func (p *puller) Pull(ctx context.Context, plan transport.Plan) (transport.Stats, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	start := time.Now()
	if p.over == nil {
		p.bad = p.bad[:0]
		p.over = transport.Guard(func() error { return p.copy(ctx, plan) })
	}
	if p.over != nil {
		return transport.Stats{}, fmt.Errorf("shm transport: pull: %w", p.over)
	}
	stats := transport.Stats{
		Blocks: len(plan.Src), Bytes: int64(len(plan.Src)) * p.local.BlockBytes(), Took: time.Since(start),
	}
	if len(p.bad) > 0 {
		return stats, &transport.CorruptError{Blocks: append([]int(nil), p.bad...)}
	}
	return stats, nil
}

func (p *puller) copy(ctx context.Context, plan transport.Plan) error {
	if err := plan.Fits(p.remote, p.local.Layout); err != nil {
		return err
	}
	unchecked, block, regions := int64(0), p.local.BlockBytes(), len(p.local.Regions)
	for i := range plan.Src {
		good := true
		for r := range regions {
			if p.closing.Load() {
				return errClosed
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			sum := transport.Copy(p.local.Part(plan.Dst[i], r), p.memory.Part(plan.Src[i], r), 0)
			good = good && sum == plan.Sums[i*regions+r]
		}
		if !good {
			p.bad = append(p.bad, i)
		}
		if unchecked += block; unchecked >= checkEvery {
			unchecked = 0
			if err := p.check(ctx); err != nil {
				return err
			}
		}
	}
	return p.check(ctx)
}

// check returns nil when the lease was in force at a moment after the call.
func (p *puller) check(ctx context.Context) error {
	if p.closing.Load() {
		return errClosed
	}
	return p.session.Check(ctx)
}

// Close ends the move. See transport.Puller.
func (p *puller) Close() error {
	p.once.Do(func() {
		p.closing.Store(true)
		p.session.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.over == nil {
			p.over = errClosed
		}
		p.give()
	})
	return nil
}

// give gives back what the puller has of the connection and both memories.
func (p *puller) give() {
	if p.session != nil {
		p.session.Close()
	}
	if p.mapping != nil {
		p.memory.Bytes = nil
		p.owner.mappings.release(p.mapping, time.Now())
	}
	if p.local != nil {
		p.local.Release()
	}
}
