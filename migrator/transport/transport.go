// Package transport carries KV blocks from the pool of one engine into the pool of
// another: the receiver pulls the blocks, verifies their checksums, and only then reports
// success.
//
// A source exports a Grant as an Offer, which travels over the control connection. The
// receiver opens the offer with the transport of that name, and pulls plans of blocks
// with the Puller. A Chooser selects the transport for a pair of replicas. Packages below
// this one implement Transport; transporttest is their common test.
//
// The package knows blocks, regions and checksums, but no requests and no tokens. A plan
// is a table of blocks, from which a transport computes the bytes, so that nothing grows
// with the number of chunks.
//
// # Invariants
//
//  1. A receiver without a valid ticket reads no byte. A ticket is single-use, for one
//     migration and receiver, and ends with its grant. It is good for the blocks
//     that were announced for the migration, where the source's own processor sends them
//     (tcp, and verbs with bounce buffers). A receiver that maps the pool (shm, cuda), or
//     whose NIC reads it with the pool's key (verbs), can read all of it while the grant
//     is in force, and what it has mapped also afterwards: shm and cuda are for processes
//     of one user on one host, and verbs for a fabric whose hosts trust each other.
//  2. Pull writes only the destination blocks of its plan, and reports success only if
//     every region of every block has the checksum of the plan.
//  3. After Close of a Puller no byte of the local memory changes any more. A successful
//     pull has read the exported memory before Revoke returned.
//  4. Every wait has a deadline: that of the context, or of the grant.
package transport

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// Grant allows one receiver to pull for one migration.
type Grant struct {
	Migration string // source/number, unique in the fleet
	Receiver  policies.ReplicaID
	Deadline  time.Time // when the grant ends by itself
}

// TicketSize is the length of a ticket in bytes.
const TicketSize = 16

// Offer is what a receiver needs to pull. It is sent to the receiver over the control
// connection.
type Offer struct {
	Transport string // the transport's name
	Address   string // of the source, in the transport's own format
	// Source is the replica that made the offer. The receiver sets it, and, with
	// identities, connects to that replica only; "" is unknown. Export leaves it "".
	Source policies.ReplicaID
	Ticket [TicketSize]byte
}

// Plan lists the blocks to pull: source block Src[i] goes into local block Dst[i], whose
// regions must have the checksums Sums[i*regions:] afterwards.
type Plan struct {
	Src, Dst []uint32
	Sums     []uint32
}

// Validate returns the first reason why the plan cannot be pulled from a pool of one
// layout into a pool of another, or nil. It does not detect a local block that is named
// twice: that block has the checksum of one of its sources at best.
func (p Plan) Validate(source, target Layout) error {
	if err := source.CheckCompatible(target); err != nil {
		return err
	}
	if len(p.Dst) != len(p.Src) || len(p.Sums) != len(p.Src)*len(target.Regions) {
		return fmt.Errorf("plan: %d source blocks, %d target blocks and %d checksums; want as many source as target blocks, and %d checksums for each", len(p.Src), len(p.Dst), len(p.Sums), len(target.Regions))
	}
	for i := range p.Src {
		if int64(p.Src[i]) >= int64(source.Blocks) || int64(p.Dst[i]) >= int64(target.Blocks) {
			return fmt.Errorf("plan: entry %d copies block %d of a pool of %d to block %d of a pool of %d", i, p.Src[i], source.Blocks, p.Dst[i], target.Blocks)
		}
	}
	return nil
}

// Stats describes a pull that has ended.
type Stats struct {
	Bytes    int64
	Duration time.Duration
}

// ErrRefused is the error of Open when the source did not accept the ticket: it is
// unknown, used, expired, revoked, or was issued for another receiver.
var ErrRefused = errors.New("the source refused the ticket")

// CorruptError lists the blocks of a plan that arrived without their checksums. They may
// be pulled again.
type CorruptError struct{ Blocks []int } // indices into the plan

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%d blocks do not have the checksums of the plan", len(e.Blocks))
}

// Puller is one open pull at the target. It is for one goroutine at a time, but any
// goroutine may call Close.
type Puller interface {
	// Pull copies and verifies the blocks of a plan. It returns a *CorruptError if all
	// bytes arrived and some are wrong. After any other error every further Pull fails.
	Pull(ctx context.Context, p Plan) (Stats, error)
	// Close ends the pull; a Pull in progress fails. It returns when no byte of the
	// local memory changes any more. Further calls do nothing.
	Close() error
}

// Transport carries blocks in one way. Its methods are safe for concurrent
// use. Each implementation passes transporttest.Run.
type Transport interface {
	Name() string
	// Probe returns why the transport cannot be used on this host, or nil. It is cheap
	// and may be called again at any time.
	Probe(ctx context.Context) error
	// CanReach reports whether a target on host to could pull from a source on host
	// from: shared memory, for instance, requires that they are the same.
	CanReach(from, to string) bool
	// Export makes an offer of the local engine's blocks for a grant. Each call issues a new
	// ticket; earlier tickets of the same migration stay valid until their deadlines. It does
	// not block.
	Export(Grant) (Offer, error)
	// Announce lets the receivers of the offers that were exported for a migration read
	// these blocks, beside those announced before, until the grants end. It is called
	// before the receiver learns of the blocks, and does not block.
	Announce(migration string, blocks []uint32)
	// Revoke ends all grants of a migration. A pull that reports success has read its
	// bytes before Revoke returns; all others fail.
	Revoke(migration string)
	// Open presents a ticket to its source. The Puller must be closed. Only its Pull
	// writes the local engine's memory.
	Open(ctx context.Context, receiver policies.ReplicaID, offer Offer) (Puller, error)
	// Run serves until ctx ends. Export fails before and after.
	Run(ctx context.Context) error
}
