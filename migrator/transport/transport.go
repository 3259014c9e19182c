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
//     what a successful pull read of the exported memory, it read before Revoke.
//  4. Nothing waits without a deadline: that of the context, or of the grant.
package transport

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// Grant lets one receiver pull for one move.
type Grant struct {
	Migration string // seller/number, unique in the fleet
	Epoch     policies.Epoch
	Receiver  policies.ReplicaID
	Deadline  time.Time // the grant ends by itself
}

// TicketSize is the length of a ticket in bytes.
const TicketSize = 16

// Offer is what a receiver needs to pull, handed to it over the control
// connection.
type Offer struct {
	Transport string // its name
	Address   string // where the source serves, in the transport's own terms
	// Source is the replica from which the offer has come, as its receiver knows:
	// with identities, nobody else is asked. "" is unknown. Export leaves it "".
	Source policies.ReplicaID
	Ticket [TicketSize]byte
}

// Plan says which blocks to pull where: source block Src[i] into local block
// Dst[i], whose regions must have the sums Sums[i*regions:].
type Plan struct {
	Src, Dst []uint32
	Sums     []uint32
}

// Validate reports the first reason why a plan cannot be pulled from a pool of one
// layout into one of another, or nil. A local block named twice is not looked
// for: it ends up with the sum of one of its sources at best.
func (p Plan) Validate(source, target Layout) error {
	if err := source.CheckCompatible(target); err != nil {
		return err
	}
	if len(p.Dst) != len(p.Src) || len(p.Sums) != len(p.Src)*len(target.Regions) {
		return fmt.Errorf("plan: %d source blocks, %d target blocks and %d sums; want as many blocks on both sides, and %d sums for each", len(p.Src), len(p.Dst), len(p.Sums), len(target.Regions))
	}
	for i := range p.Src {
		if int64(p.Src[i]) >= int64(source.Blocks) || int64(p.Dst[i]) >= int64(target.Blocks) {
			return fmt.Errorf("plan: entry %d moves block %d of %d to block %d of %d", i, p.Src[i], source.Blocks, p.Dst[i], target.Blocks)
		}
	}
	return nil
}

// Stats is what a pull did.
type Stats struct {
	Blocks   int
	Bytes    int64
	Duration time.Duration
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
	// Revoke ends all grants of a move. A pull that reports success has read its
	// bytes before Revoke returns; all others fail.
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
	// Close ends the move, and a Pull that is under way with an error: it returns
	// when no byte of the local memory changes any more. More calls do nothing.
	Close() error
}

// Transport is one way to carry blocks. Its methods are safe for concurrent
// use. Each implementation passes transporttest.Run.
type Transport interface {
	Name() string
	// Probe reports why the transport cannot be used on this machine, or nil.
	// It costs little and may be asked again at any time.
	Probe(ctx context.Context) error
	// CanReach reports whether a target on node to could pull from a source on
	// node from; shared memory ends at the node's border.
	CanReach(from, to string) bool
	Source
	Target
	// Run serves until ctx ends. Export fails before and after.
	Run(ctx context.Context) error
}
