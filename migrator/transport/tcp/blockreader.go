package tcp

import (
	"bufio"
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/lease"
)

// blockReader asks for the blocks of a plan and reads them to their places.
type blockReader struct {
	*lease.Puller
	socket net.Conn
	conn   net.Conn // socket, or TLS over it
	remote transport.Layout
	local  *transport.Memory

	ctx    context.Context // of the pull in progress
	armed  time.Time       // when the connection's deadline was set
	in     *bufio.Reader   // of this blockReader
	ask    []byte
	head   [headSize]byte
	bad    []int
	packed []byte // the blocks of one answer, on their way to a device
}

// newPuller returns the puller of a connection over which the ticket was accepted.
func newPuller(r *blockReader, conn net.Conn) *lease.Puller {
	r.conn, r.in = conn, bufio.NewReaderSize(r, bufferBytes)
	r.Puller = lease.NewPuller(lease.Steps{
		Transport: "tcp", Local: r.local, Remote: r.remote, Release: r.release,
		Copy:      r.copyBlocks,
		Interrupt: func() { r.socket.Close() },
	})
	return r.Puller
}

// copyBlocks pulls the blocks of a plan.
func (r *blockReader) copyBlocks(ctx context.Context, plan transport.Plan, bad []int) ([]int, error) {
	r.ctx, r.bad = ctx, bad
	err := lease.InterruptConn(ctx, r.socket, func() error {
		return transport.CatchFault(func() error { return r.readBlocks(plan) })
	})
	return r.bad, err
}

// readBlocks asks for the plan in lists, one list ahead of the answer that it reads.
func (r *blockReader) readBlocks(plan transport.Plan) error {
	list := int(min(max(askBytes/r.local.BlockBytes(), 1), maxAsk))
	if err := r.writeAsk(plan.Src[:min(list, len(plan.Src))]); err != nil {
		return err
	}
	for done := 0; ; {
		next := min(done+list, len(plan.Src))
		if next < len(plan.Src) {
			if err := r.writeAsk(plan.Src[next:min(next+list, len(plan.Src))]); err != nil {
				return err
			}
		}
		if err := r.readAnswer(plan, done, next); err != nil {
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

func (r *blockReader) writeAsk(blocks []uint32) error {
	r.ask = appendAsk(r.ask[:0], blocks)
	if err := r.extendDeadline(); err != nil {
		return err
	}
	_, err := r.conn.Write(r.ask)
	return err
}

// extendDeadline moves the connection's deadline on from time to time, and returns why the
// pull must end. It checks that last, since the new deadline may have replaced the one that
// the end of the context has set.
func (r *blockReader) extendDeadline() error {
	if now := time.Now(); now.Sub(r.armed) > stallTimeout/8 {
		r.armed = now
		if err := r.conn.SetDeadline(now.Add(stallTimeout)); err != nil {
			return err
		}
	}
	return r.Err(r.ctx)
}

// Read reads from the connection, as long as the pull may go on.
func (r *blockReader) Read(b []byte) (int, error) {
	if err := r.extendDeadline(); err != nil {
		return 0, err
	}
	return r.conn.Read(b)
}

// readAnswer reads the answer for entries [from, to) of a plan.
func (r *blockReader) readAnswer(plan transport.Plan, from, to int) error {
	if _, err := io.ReadFull(r.in, r.head[:]); err != nil {
		return err
	}
	count, err := parseHead(r.head[:], kindAnswer)
	if err != nil {
		return err
	}
	if count != to-from {
		return fmt.Errorf("the source answered with %d blocks, want %d", count, to-from)
	}
	regions := r.local.Regions
	if r.local.Device != nil {
		size := (to - from) * int(r.local.BlockBytes())
		r.packed = slices.Grow(r.packed[:0], size)[:size]
	}
	packed := r.packed
	for entry := from; entry < to; entry++ {
		good := true
		for k, g := range regions {
			var part []byte
			if r.local.Device == nil {
				part = r.local.RegionBytes(plan.Dst[entry], k)
			} else {
				part, packed = packed[:g.Bytes], packed[g.Bytes:]
			}
			sum, err := r.readPart(part)
			if err != nil {
				return err
			}
			good = good && sum == plan.Sums[entry*len(regions)+k]
		}
		if !good {
			r.bad = append(r.bad, entry)
		}
	}
	return nil
}

// readPart fills part, and returns its checksum. It reads few bytes at a time, which are in the core's cache still when
// they are summed.
func (r *blockReader) readPart(part []byte) (sum uint32, err error) {
	for rest := part; len(rest) > 0; {
		piece := rest[:min(len(rest), readBytes)]
		if _, err := io.ReadFull(r.in, piece); err != nil {
			return 0, err
		}
		if r.remote.Checksum == transport.CRC32 {
			sum = crc32.Update(sum, crc32.IEEETable, piece)
		}
		rest = rest[len(piece):]
	}
	if r.remote.Checksum != transport.CRC32 { // of whole parts only
		sum = r.remote.Checksum.Of(part)
	}
	return sum, nil
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
