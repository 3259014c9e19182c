package memtransport

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/migrator/internal/ticket"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

var errClosed = errors.New("the puller is closed")

type puller struct {
	faults  *Faults
	lease   *ticket.Lease
	once    sync.Once
	closing chan struct{}

	mu    sync.Mutex // held by Pull, and by Close when it gives back
	local *transport.Memory
	bad   []int
	over  error // why the puller is of no use any more
}

// Pull copies block by block, each inside the lease. See transport.Puller.
func (p *puller) Pull(ctx context.Context, plan transport.Plan) (transport.Stats, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	start := time.Now()
	if p.over == nil {
		p.over = p.copy(ctx, plan)
	}
	if p.over != nil {
		return transport.Stats{}, fmt.Errorf("memory transport: pull for move %s: %w", p.lease.Move, p.over)
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
	p.bad = p.bad[:0]
	if err := plan.Fits(p.lease.Memory.Layout, p.local.Layout); err != nil {
		return err
	}
	fault := p.faults.next(AtPull)
	for i := 0; i <= len(plan.Src); i++ { // the last turn is after the last block
		if err := p.turn(ctx, fault, i, i == len(plan.Src)); err != nil {
			return err
		}
		if !p.lease.Enter(time.Now()) {
			return errors.New("the source has ended the grant")
		}
		if i < len(plan.Src) && !p.block(plan, i, fault.Kind == Corrupt && fault.Block == i) {
			p.bad = append(p.bad, i)
		}
		p.lease.Leave()
	}
	return nil
}

// turn is what happens before block i, and once after the last one.
func (p *puller) turn(ctx context.Context, fault Fault, i int, last bool) error {
	select {
	case <-p.closing:
		return errClosed
	default:
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if fault.Block == i || last && fault.Block > i {
		return fault.wait(ctx, p.closing, p.lease.Deadline)
	}
	return nil
}

// block copies entry i of the plan and reports whether it has its sums.
func (p *puller) block(plan transport.Plan, i int, corrupt bool) bool {
	good, regions := true, len(p.local.Regions)
	for r := range regions {
		dst := p.local.Part(plan.Dst[i], r)
		sum := transport.Copy(dst, p.lease.Memory.Part(plan.Src[i], r), 0)
		if corrupt && r == 0 {
			dst[0] ^= 0xff
			sum = ^sum
		}
		good = good && sum == plan.Sums[i*regions+r]
	}
	return good
}

// Close ends the move. See transport.Puller.
func (p *puller) Close() error {
	p.once.Do(func() {
		close(p.closing)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.over == nil {
			p.over = errClosed
		}
		p.lease.End()
		p.local.Release()
	})
	return nil
}
