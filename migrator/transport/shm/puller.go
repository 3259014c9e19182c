package shm

import (
	"context"
	"errors"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/lease"
	"github.com/cascadeinfer/cascade/policies"
)

// Open presents a ticket and maps the source's pool. See transport.Transport.
func (t *Transport) Open(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (transport.Puller, error) {
	return lease.Open(t.Name(), offer, func() (*puller, error) { return t.open(ctx, receiver, offer) })
}

func (t *Transport) open(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (_ *puller, err error) {
	p := &puller{mappings: &t.mappings}
	defer func() {
		if err != nil {
			p.release()
		}
	}()
	if p.local, err = transport.HoldHostMemory(t.Pool); err != nil {
		return nil, err
	}
	if p.session, err = t.OpenSession(ctx, receiver, offer); err != nil {
		return nil, err
	}
	file := p.session.File
	if file == nil {
		return nil, errors.New("the source sent no file")
	}
	defer file.Close()
	layout := p.session.Layout
	if err := layout.CheckCompatible(p.local.Layout); err != nil {
		return nil, err
	}
	if p.mapping, err = t.mappings.open(file, p.session.Size); err != nil {
		return nil, err
	}
	p.remote = transport.Memory{Layout: layout, Bytes: p.mapping.bytes}
	p.Puller = lease.NewPuller(lease.Steps{
		Transport: t.Name(), Local: p.local, Remote: layout, Copy: p.copyBlocks, Interrupt: p.session.Close, Release: p.release,
	})
	return p, nil
}

// puller is one open pull: a connection and a mapping of the source's pool.
type puller struct {
	*lease.Puller
	session  *lease.SocketSession
	local    *transport.Memory
	mappings *mappings
	mapping  *mapping
	remote   transport.Memory // the mapping as a pool
}

// copyBlocks copies the blocks of a plan out of the mapping.
func (p *puller) copyBlocks(ctx context.Context, plan transport.Plan, bad []int) ([]int, error) {
	err := transport.CatchFault(func() error {
		unchecked, block, regions := int64(0), p.local.BlockBytes(), len(p.local.Regions)
		for i := range plan.Src {
			good := true
			for r := range regions {
				if err := p.Err(ctx); err != nil {
					return err
				}
				sum := transport.CopyAndChecksum(p.local.RegionBytes(plan.Dst[i], r), p.remote.RegionBytes(plan.Src[i], r), 0)
				good = good && sum == plan.Sums[i*regions+r]
			}
			if !good {
				bad = append(bad, i)
			}
			if unchecked += block; unchecked >= checkEvery {
				unchecked = 0
				if err := p.checkGrant(ctx); err != nil {
					return err
				}
			}
		}
		return p.checkGrant(ctx)
	})
	return bad, err
}

// checkGrant returns nil if the lease was in force at a moment after the call.
func (p *puller) checkGrant(ctx context.Context) error {
	if err := p.Err(ctx); err != nil {
		return err
	}
	return p.session.Check(ctx)
}

// release gives back the connection and both memories.
func (p *puller) release() error {
	if p.session != nil {
		p.session.Close()
	}
	if p.mapping != nil {
		p.remote.Bytes = nil
		p.mappings.release(p.mapping, time.Now())
	}
	if p.local != nil {
		p.local.Release()
	}
	return nil
}
