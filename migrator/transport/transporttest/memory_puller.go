package transporttest

import (
	"context"
	"errors"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/lease"
)

// puller is one open pull.
type puller struct {
	*lease.Puller
	faults  *Faults
	lease   *lease.Lease
	local   *transport.Memory
	closing chan struct{} // closed by Close
}

func newPuller(faults *Faults, held *lease.Lease, local *transport.Memory) *puller {
	p := &puller{faults: faults, lease: held, local: local, closing: make(chan struct{})}
	p.Puller = lease.NewPuller(lease.Steps{
		Transport: "memory", Local: local, Remote: held.Memory.Layout, Copy: p.copyBlocks,
		Interrupt: func() { close(p.closing) },
		Release: func() error {
			held.End()
			local.Release()
			return nil
		},
	})
	return p
}

// copyBlocks copies a plan block by block, each inside the lease.
func (p *puller) copyBlocks(ctx context.Context, plan transport.Plan, bad []int) ([]int, error) {
	if err := p.lease.CheckAnnounced(plan.Src); err != nil {
		return bad, err
	}
	fault := p.faults.next(AtPull)
	for i := 0; i <= len(plan.Src); i++ { // the last iteration is after the last block
		if err := p.injectFault(ctx, fault, i, i == len(plan.Src)); err != nil {
			return bad, err
		}
		if !p.lease.Enter(time.Now()) {
			return bad, errors.New("the source has ended the grant")
		}
		if i < len(plan.Src) && !p.copyBlock(plan, i, fault.Kind == Corrupt && fault.Block == i) {
			bad = append(bad, i)
		}
		p.lease.Leave()
	}
	return bad, nil
}

// injectFault runs a fault that happens before block i, or, if last, at any later block.
func (p *puller) injectFault(ctx context.Context, fault Fault, i int, last bool) error {
	if err := p.Err(ctx); err != nil {
		return err
	}
	if fault.Block == i || last && fault.Block > i {
		return fault.wait(ctx, p.closing, p.lease.Deadline)
	}
	return nil
}

// copyBlock copies entry i of the plan and reports whether it has its checksums.
func (p *puller) copyBlock(plan transport.Plan, i int, corrupt bool) bool {
	good, regions := true, len(p.local.Regions)
	for r := range regions {
		dst := p.local.RegionBytes(plan.Dst[i], r)
		sum := transport.CopyAndChecksum(dst, p.lease.Memory.RegionBytes(plan.Src[i], r), 0)
		if corrupt && r == 0 {
			dst[0] ^= 0xff
			sum = ^sum
		}
		good = good && sum == plan.Sums[i*regions+r]
	}
	return good
}
