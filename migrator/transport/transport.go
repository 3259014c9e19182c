// Package transport carries KV blocks from one engine's pool into another's:
// the receiver pulls, verifies, and only then tells anybody.
//
// It knows blocks, regions and checksums, no requests and no tokens. What is
// exchanged is a block table; a transport works out the bytes by itself, so
// that nothing grows with the number of chunks.
//
// # Invariants
//
//  1. Without a valid ticket nobody reads a byte: a ticket is single-use, for
//     one move, epoch and receiver, and dies with its grant.
//  2. Pull writes only the destination blocks of its plan, and reports success
//     only if every region of every block has the sum that the plan names.
//  3. After Close of a Puller no byte of the local memory changes any more;
//     after Revoke no byte of the exported memory is read by new pulls.
//  4. Nothing waits without a deadline: that of the context, or of the grant.
package transport

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// Region is where one part of every block lies: part of block b begins at
// Offset + b·Stride and is Bytes long.
type Region struct{ Offset, Stride, Bytes int64 }

// Layout is the shape of a pool. Two pools exchange blocks when their regions
// have equal Bytes, one by one; offsets, strides and counts may differ.
type Layout struct {
	Regions []Region
	Blocks  int // numbered from 0
}

// BlockBytes is the size of a block, all regions together.
func (l Layout) BlockBytes() int64 {
	n := int64(0)
	for _, r := range l.Regions {
		n += r.Bytes
	}
	return n
}

// Fits reports the first reason why a layout does not describe a memory of that
// size, or nil: bad counts, regions that leave the memory, or that overlap
// their own next block.
func (l Layout) Fits(size int64) error {
	if l.Blocks <= 0 || len(l.Regions) == 0 {
		return errors.New("layout: blocks and regions must be positive")
	}
	for i, r := range l.Regions {
		if r.Offset < 0 || r.Bytes <= 0 || r.Stride < r.Bytes {
			return fmt.Errorf("layout: region %d: offset %d, stride %d, %d bytes: want offset ≥ 0 and stride ≥ bytes > 0", i, r.Offset, r.Stride, r.Bytes)
		}
		if last := int64(l.Blocks - 1); r.Bytes > size || r.Offset > size-r.Bytes || r.Stride > 0 && last > (size-r.Bytes-r.Offset)/r.Stride {
			return fmt.Errorf("layout: region %d of block %d ends after the memory's %d bytes", i, l.Blocks-1, size)
		}
	}
	return nil
}

// Memory is an engine's pool, mapped into this process.
type Memory struct {
	Layout
	Bytes []byte
	// File is the shared memory behind Bytes, nil for none; transports that hand
	// the memory itself to a peer need it, and hand it on for reading only.
	File *os.File
}

// Part is region r of block b. It panics when either is out of range.
func (m *Memory) Part(b uint32, r int) []byte {
	g := m.Regions[r]
	if int64(b) >= int64(m.Blocks) {
		panic(fmt.Sprintf("internal error: block %d of a pool of %d", b, m.Blocks))
	}
	at := g.Offset + int64(b)*g.Stride
	return m.Bytes[at : at+g.Bytes : at+g.Bytes]
}

// Sums appends the checksums of blocks to dst: crc32 (IEEE) of each region,
// block by block.
func (m *Memory) Sums(dst []uint32, blocks []uint32) []uint32 {
	for _, b := range blocks {
		for r := range m.Regions {
			dst = append(dst, crc32.ChecksumIEEE(m.Part(b, r)))
		}
	}
	return dst
}

// Grant lets one receiver pull for one move.
type Grant struct {
	Move     string // seller/number, unique in the fleet
	Epoch    policies.Epoch
	Receiver policies.ReplicaID
	Deadline time.Time // the grant ends by itself
}

// TicketSize is the length of a ticket in bytes.
const TicketSize = 16

// Offer is what a receiver needs to pull, handed to it over the control
// connection.
type Offer struct {
	Transport string // its name
	Address   string // where the source serves, in the transport's own terms
	Ticket    [TicketSize]byte
}

// Plan says which blocks to pull where: source block Src[i] into local block
// Dst[i], whose regions must have the sums Sums[i*regions:].
type Plan struct {
	Src, Dst []uint32
	Sums     []uint32
}

// Stats is what a pull did.
type Stats struct {
	Blocks int
	Bytes  int64
	Took   time.Duration
}

// ErrRefused says that the source did not accept the ticket: unknown, used,
// expired, revoked, or another receiver's.
var ErrRefused = errors.New("the source refuses the ticket")

// CorruptError says which blocks of a plan arrived and do not have their sums.
// They may be pulled again.
type CorruptError struct{ Blocks []int } // indices into the plan

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%d blocks do not have the sums that the source named", len(e.Blocks))
}

// Source serves the blocks of the own engine's pool.
type Source interface {
	// Export makes an offer for a grant. Each call makes a new ticket; earlier
	// ones of the same move go on until their deadlines. It does not block.
	Export(Grant) (Offer, error)
	// Revoke ends all grants of a move. Pulls that are under way fail or have
	// read their bytes when it returns.
	Revoke(move string)
}

// Target pulls into the own engine's pool.
type Target interface {
	// Open presents a ticket to its source. The Puller must be closed. The own
	// memory is only written by its Pull.
	Open(ctx context.Context, receiver policies.ReplicaID, offer Offer) (Puller, error)
}

// Puller is one open move at the target. It is for one goroutine at a time, but
// Close may be called by any.
type Puller interface {
	// Pull copies and verifies. It returns a *CorruptError when all bytes came
	// and some are wrong; after any other error the Puller is of no use.
	Pull(ctx context.Context, p Plan) (Stats, error)
	// Close ends the move: it returns when no byte of the local memory changes
	// any more.
	Close() error
}

// Transport is one way to carry blocks. Its methods are safe for concurrent
// use. Each implementation passes transporttest.Run.
type Transport interface {
	Name() string
	// Probe reports why the transport cannot be used on this machine, or nil.
	// It costs little and may be asked again at any time.
	Probe(ctx context.Context) error
	// Reaches reports whether a target on node to could pull from a source on
	// node from; shared memory ends at the node's border.
	Reaches(from, to string) bool
	Source
	Target
	// Run serves until ctx ends. Export fails before and after.
	Run(ctx context.Context) error
}
