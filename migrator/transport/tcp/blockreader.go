package tcp

import (
	"context"
	"fmt"
	"hash/crc32"
	"net"
	"slices"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/lease"
)

// blockReader asks for the blocks of a plan and reads them to their places.
type blockReader struct {
	*lease.Puller
	socket net.Conn
	conn   connReader // of socket, or of TLS over it
	remote transport.Layout
	local  *transport.Memory

	ask     []byte
	head    [headSize]byte
	pending [][]byte // parts to be read
	bad     []int
	packed  []byte // the blocks of one answer, on their way to a device
}

// copyBlocks pulls the blocks of a plan.
func (r *blockReader) copyBlocks(ctx context.Context, plan transport.Plan, bad []int) ([]int, error) {
	r.bad = bad
	err := lease.InterruptConn(ctx, r.socket, func() error {
		return transport.CatchFault(func() error { return r.readBlocks(ctx, plan) })
	})
	return r.bad, err
}

// readBlocks asks for the plan in lists, one list ahead of the answer that it reads.
func (r *blockReader) readBlocks(ctx context.Context, plan transport.Plan) error {
	list := int(min(max(askBytes/r.local.BlockBytes(), 1), maxAsk))
	asked := 0
	for done := 0; ; {
		for asked == done || asked < len(plan.Src) && asked <= done+list {
			next := min(asked+list, len(plan.Src))
			if err := r.writeAsk(ctx, plan.Src[asked:next]); err != nil {
				return err
			}
			asked = next
			if asked == done { // an empty plan: its only list has no blocks
				break
			}
		}
		next := min(done+list, len(plan.Src))
		if err := r.readAnswer(ctx, plan, done, next); err != nil {
			return err
		}
		if r.local.Device != nil && next > done {
			if err := r.local.Device.Scatter(r.local.Layout, plan.Dst[done:next], r.packed); err != nil {
				return err
			}
		}
		if done = next; done == len(plan.Src) {
			return nil
		}
	}
}

func (r *blockReader) writeAsk(ctx context.Context, blocks []uint32) error {
	r.ask = appendAsk(r.ask[:0], blocks)
	if err := r.conn.extendDeadline(ctx); err != nil {
		return err
	}
	_, err := r.conn.conn.Write(r.ask)
	return err
}

// readAnswer reads the answer for entries [from, to) of a plan.
func (r *blockReader) readAnswer(ctx context.Context, plan transport.Plan, from, to int) error {
	if err := r.conn.readFull(ctx, r.head[:]); err != nil {
		return err
	}
	count, err := parseHead(r.head[:], kindAnswer)
	if err != nil {
		return err
	}
	if count != to-from {
		return fmt.Errorf("the source answered with %d blocks, want %d", count, to-from)
	}
	// Parts have consecutive numbers: part k is region k%regions of entry k/regions.
	// Those before done are complete, those before next are pending.
	regions := len(r.local.Regions)
	running := r.remote.Checksum == transport.CRC32 // other checksums need whole parts
	if r.local.Device != nil {
		size := (to - from) * int(r.local.BlockBytes())
		r.packed = slices.Grow(r.packed[:0], size)[:size]
	}
	done, next, end := from*regions, from*regions, to*regions
	pending, pendingBytes, sum := r.pending[:0], 0, uint32(0)
	for done < end {
		for next < end && pendingBytes < readBytes && len(pending) < readParts {
			part := r.destination(plan, from, next)
			pending, pendingBytes, next = append(pending, part), pendingBytes+len(part), next+1
		}
		if err := r.Err(ctx); err != nil {
			return err
		}
		n, err := r.conn.readParts(ctx, pending)
		if err != nil {
			return err
		}
		pendingBytes -= n
		full := 0
		for ; n > 0 && n >= len(pending[full]); full++ {
			if running {
				sum = crc32.Update(sum, crc32.IEEETable, pending[full])
			} else {
				sum = r.remote.Checksum.Of(r.destination(plan, from, done+full))
			}
			n -= len(pending[full])
			r.verifyPart(plan, done+full, sum)
			sum = 0
		}
		if n > 0 && running {
			sum = crc32.Update(sum, crc32.IEEETable, pending[full][:n])
		}
		if n > 0 {
			pending[full] = pending[full][n:]
		}
		done += full
		pending = append(pending[:0], pending[full:]...)
	}
	return nil
}

// destination returns where the bytes of a part go, in an answer that begins with entry
// from: to their place in the pool, or, for a device, to their place in packed.
func (r *blockReader) destination(plan transport.Plan, from, part int) []byte {
	entry, region := part/len(r.local.Regions), part%len(r.local.Regions)
	if r.local.Device == nil {
		return r.local.RegionBytes(plan.Dst[entry], region)
	}
	at := int64(entry-from) * r.local.BlockBytes()
	for _, g := range r.local.Regions[:region] {
		at += g.Bytes
	}
	return r.packed[at:][:r.local.Regions[region].Bytes]
}

// verifyPart records the entry of a part that does not have its checksum.
func (r *blockReader) verifyPart(plan transport.Plan, part int, sum uint32) {
	entry := part / len(r.local.Regions)
	if sum != plan.Sums[part] && (len(r.bad) == 0 || r.bad[len(r.bad)-1] != entry) {
		r.bad = append(r.bad, entry)
	}
}

// release closes the connection and releases the memory.
func (r *blockReader) release() error {
	if r.socket != nil {
		r.socket.Close()
	}
	if r.local != nil {
		r.local.Release()
	}
	return nil
}
