package verbs

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cascadeinfer/cascade/migrator/transport"
)

// usesBuffers reports whether blocks go through bounce buffers at one end or both.
func (p *puller) usesBuffers() bool { return p.region.bufferBytes > 0 || p.remoteMem.buffers > 0 }

// portionSize returns how many entries of a plan go through a buffer at a time, and
// through how many buffers.
func (p *puller) portionSize() (each, buffers int) {
	block := p.memory.BlockBytes()
	each, buffers = maxAsked, bounceBuffers
	if p.region.bufferBytes > 0 {
		each = min(each, int(p.region.bufferBytes/block))
	}
	if p.remoteMem.buffers > 0 {
		each, buffers = min(each, int(int64(p.remoteMem.bufferBytes)/block)), min(buffers, int(p.remoteMem.buffers))
	}
	return each, buffers
}

// readByBuffers pulls a plan through bounce buffers, portion by portion. While one
// portion is copied out of a buffer at this end, the next one is in flight, and the
// source packs the ones after it.
func (p *puller) readByBuffers(ctx context.Context, plan transport.Plan) error {
	defer context.AfterFunc(ctx, p.hangUp)()
	late := time.NewTimer(time.Until(p.deadline))
	defer late.Stop()
	each, turns := p.portionSize()
	regions := len(p.memory.Regions)
	count := (len(plan.Src) + each - 1) / each
	portion := func(k int) transport.Plan {
		from, to := k*each, min((k+1)*each, len(plan.Src))
		return transport.Plan{Src: plan.Src[from:to], Dst: plan.Dst[from:to], Sums: plan.Sums[from*regions : to*regions]}
	}
	asked, before := 0, uint64(0) // portions; batches of those before the latest
	for k := 0; k <= count && count > 0; k++ {
		if k < count {
			// A buffer is free again when its portion is finished: all portions up to k-2
			// are.
			for ; p.remoteMem.buffers > 0 && asked < min(count, k-1+turns); asked++ {
				if err := p.sendAsk(ctx, uint32(asked%turns), portion(asked).Src); err != nil {
					return err
				}
			}
			if err := p.waitPacked(ctx, uint32(k%turns), late.C); err != nil {
				return err
			}
			if err := p.postPieces(ctx, p.portionPieces(portion(k), k%turns)); err != nil {
				return err
			}
		}
		if k > 0 {
			for p.ended < before {
				if err := p.waitBatches(ctx); err != nil {
					return err
				}
			}
			if err := p.finishPortion(portion(k-1), (k-1)*each, (k-1)%turns); err != nil {
				return err
			}
		}
		before = p.posted
	}
	return nil
}

// sendAsk asks the source to pack blocks into a buffer.
func (p *puller) sendAsk(ctx context.Context, buffer uint32, blocks []uint32) error {
	if err := p.stream.SendMsg(wrapperspb.Bytes(appendAsk(nil, buffer, blocks))); err != nil {
		p.hangUp()
		<-p.streamEnded // the reason is what the source has sent
		return p.causeOf(ctx, *p.endErr.Load())
	}
	return nil
}

// waitPacked waits until the source has packed a buffer, if it has buffers. Meanwhile it
// polls the completion queue, which may notice first that the source is lost.
func (p *puller) waitPacked(ctx context.Context, buffer uint32, late <-chan time.Time) error {
	if p.remoteMem.buffers == 0 {
		return nil
	}
	look := time.NewTicker(pollInterval)
	defer look.Stop()
	for start := time.Now(); ; {
		select {
		case got := <-p.replies:
			if got != buffer {
				return fmt.Errorf("the source packed buffer %d, want %d", got, buffer)
			}
			return nil
		case <-p.streamEnded:
			return p.causeOf(ctx, *p.endErr.Load())
		case <-late:
			return errExpired
		case <-look.C:
			n, err := p.queue.Poll(p.done)
			if err == nil {
				err = p.countBatches(ctx, n)
			}
			if err == nil && time.Since(start) > packTimeout {
				err = fmt.Errorf("the source did not pack a buffer within %v", packTimeout)
			}
			if err != nil {
				return err
			}
		}
	}
}

// postPieces posts all pieces, and waits while too many batches are in flight.
func (p *puller) postPieces(ctx context.Context, c pieceSource) error {
	for !c.over() {
		for p.posted == p.ended+depth {
			if err := p.waitBatches(ctx); err != nil {
				return err
			}
		}
		if err := p.postBatch(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// finishPortion copies a portion that begins with entry at out of its buffer, and
// verifies it if the pool is in host memory.
func (p *puller) finishPortion(portion transport.Plan, at, buffer int) error {
	if p.region.bufferBytes > 0 {
		b := p.region.memory.Bytes[int64(buffer)*p.region.bufferBytes:][:int64(len(portion.Dst))*p.memory.BlockBytes()]
		err := p.memory.Device.Scatter(p.memory.Layout, portion.Dst, b)
		if err != nil {
			p.nic.retireRegion(p.region)
		}
		return err
	}
	if p.memory.Device != nil {
		return nil
	}
	return transport.CatchFault(func() error {
		first := len(p.bad)
		p.bad = appendCorrupt(p.memory, p.remote.Checksum, portion, 0, len(portion.Dst)*len(p.memory.Regions), p.bad)
		for i := range p.bad[first:] {
			p.bad[first+i] += at
		}
		return nil
	})
}

// portionPieces returns the pieces of a portion that goes through a buffer.
func (p *puller) portionPieces(portion transport.Plan, buffer int) pieceSource {
	n, own, theirs := len(portion.Src), int64(buffer)*p.region.bufferBytes, int64(buffer)*int64(p.remoteMem.bufferBytes)
	switch {
	case p.remoteMem.buffers == 0:
		p.runs = p.runs[:0]
		for i, b := range portion.Src {
			p.runs = append(p.runs, blockRun{i, 1, int64(b), int64(i)})
		}
		target := p.memory.Packed(n)
		for i := range target.Regions {
			target.Regions[i].Offset += own
		}
		return &cursor{source: p.remote, target: target, plan: p.runs, entries: n}
	case p.region.bufferBytes == 0:
		return &unpackCursor{at: theirs, target: p.memory.Layout, blocks: portion.Dst}
	}
	// Blocks that are packed at both ends are one run of one region.
	whole := func(offset int64) transport.Layout {
		size := p.memory.BlockBytes()
		return transport.Layout{Blocks: n, Regions: []transport.Region{{Offset: offset, Stride: size, Bytes: size}}}
	}
	p.runs = append(p.runs[:0], blockRun{n: n})
	return &cursor{source: whole(theirs), target: whole(own), plan: p.runs, entries: n}
}

// unpackCursor walks packed blocks at the source, and their parts in the target pool.
type unpackCursor struct {
	at     int64 // offset at the source
	target transport.Layout
	blocks []uint32 // not yet returned

	region int
	done   int64 // bytes of it
}

func (u *unpackCursor) over() bool { return len(u.blocks) == 0 }

func (u *unpackCursor) next(most int64) (from, to, n int64) {
	if u.over() || most <= 0 {
		return 0, 0, 0
	}
	g := u.target.Regions[u.region]
	from, to, n = u.at, g.Offset+int64(u.blocks[0])*g.Stride+u.done, min(most, g.Bytes-u.done)
	u.at, u.done = u.at+n, u.done+n
	if u.done == g.Bytes {
		u.region, u.done = u.region+1, 0
	}
	if u.region == len(u.target.Regions) {
		u.region, u.blocks = 0, u.blocks[1:]
	}
	return from, to, n
}
