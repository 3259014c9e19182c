package move

import (
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// VersionMin and VersionMax are the protocol versions of this build. Replicas whose
// versions do not overlap migrate requests by Reprompt, whose messages never change.
const (
	VersionMin = 1
	VersionMax = 1
)

// Kind is the kind of a message. The values are sent on the wire: new ones are added at
// the end, and a Machine ignores those that it does not know.
type Kind uint8

// The kinds of messages; the package comment shows when each is sent.
const (
	Open Kind = iota + 1
	Accept
	Round
	Manifest
	Pulled
	Pulling
	Ready
	Commit
	Query
	Pending
	Committed
	Reverted
	Ended
	Rejected
	Abort
)

var kindNames = [...]string{"", "open", "accept", "round", "manifest", "pulled", "pulling", "ready", "commit", "query", "pending", "committed", "reverted", "ended", "rejected", "abort"}

// String returns the name of the kind, for logs and metrics.
func (k Kind) String() string {
	if k == 0 || int(k) >= len(kindNames) {
		return "unknown"
	}
	return kindNames[k]
}

// Mode is how a request migrates. The values are sent on the wire.
type Mode uint8

// The modes.
const (
	Reprompt Mode = iota + 1 // the target recomputes the KV from the token ids
	Live                     // the target pulls the source's KV blocks
	// Handoff is as Reprompt, but the target's engine fetches the KV from the source's. With
	// Accept and Commit: it must, or the request stays. With Committed: it has.
	Handoff
)

// String returns the name of the mode, for tables and metrics.
func (w Mode) String() string {
	switch w {
	case Reprompt:
		return "reprompt"
	case Live:
		return "live"
	case Handoff:
		return "handoff"
	}
	return "unknown"
}

// Failure is the reason why a migration failed. The values are sent on the wire.
type Failure uint8

// The reasons.
const (
	UnknownToPeer    Failure = iota + 1 // the peer does not know the migration
	PeerTimeout                         // the peer was silent for too long
	PeerGone                            // the peer is gone
	FrontEndGone                        // the request's front end is gone
	DeadlineExceeded                    // the migration took too long
	Withdrawn                           // the market withdrew the migration
	AlreadyMigrating                    // the request is in another migration
	Pinned                              // the request may not migrate
	RequestEnded                        // the request has ended
	EngineRefused                       // the engine refused a call
	OutOfBlocks                         // the reservation is gone or too small
	NoTransport                         // all transports failed
	ChecksumMismatch                    // blocks arrived repeatedly with wrong checksums
	Preempted                           // the engine freed the request's blocks
	TableMismatch                       // the two sides' tables do not match
	TargetFailed                        // the front end could not continue the stream at the target
	HeldElsewhere                       // another replica holds the request
)

var whyNames = [...]string{"", "unknown to the peer", "peer timeout", "peer gone", "front end gone", "deadline exceeded", "withdrawn", "already migrating", "pinned", "request ended",
	"engine refused", "out of blocks", "no transport", "checksum mismatch", "preempted", "table mismatch", "target failed", "held elsewhere"}

// String returns the name of the reason, for logs and metrics.
func (w Failure) String() string {
	if w == 0 || int(w) >= len(whyNames) {
		return "unknown"
	}
	return whyNames[w]
}

// Table is the bulk of a Round or a Manifest. Only the executor looks into it.
type Table struct {
	IDs    []uint32 // token ids, from position Span.From on
	Blocks []uint32 // the source's blocks that hold them
	Sums   []uint32 // checksum of each region of each block
}

// Message is sent from one replica to another about a migration. A field is zero unless
// its comment names the Kind.
type Message struct {
	Kind     Kind
	From, To policies.ReplicaID
	Deal     bidask.Deal // its Seller is the source
	Round    uint32      // Round, Manifest, Pulled, Pulling
	Failure  Failure     // Abort
	// Stall is how long the front end's client received no token because of the
	// migration; with Committed, 0 if unknown.
	Stall policies.Micros
	// Epoch is the request's epoch: the source's with Accept, Commit and Query, the
	// current one with Committed and Reverted.
	Epoch    policies.Epoch
	Request  string             // Accept, Commit, Query
	FrontEnd policies.ReplicaID // Accept
	Target   policies.ReplicaID // Commit
	Mode     Mode               // Accept, Commit; Committed: Handoff if the migration became one
	// Engine is the sender's engine, with Open and Accept.
	Engine                 KVFormat
	VersionMin, VersionMax uint32            // Open
	Transports             []string          // Open: those that the target can use, best first
	Offers                 []transport.Offer // Accept: filled in by the executor
	Span                                     // Accept (Length only), Round, Manifest, Commit
	Table                  *Table            // Round, Manifest
	// Connector is the KV connector of the sender's engine, with Open and Commit, and EngineBusy
	// says, with Commit, that this engine would take long to hand KV over. TargetConnector is
	// what Open said. The executor fills in the others; a front end that is the source itself gets
	// its own Commit without them.
	Connector, TargetConnector engineinfo.KVConnector
	EngineBusy                 bool
}

// KVFormat is what the two sides compare of their engines.
type KVFormat struct {
	Fingerprint uint64 // of its block layout; 0 if it serves no blocks
	BlockTokens uint32
}

// Span is what a table covers: KV of the positions [From, Computed), and ids of
// [From, Length) in a Manifest or [From, Computed) in a Round, whose blocks are full.
type Span struct {
	From, Computed, Length uint64
	Generation             uint64      // of the source's blocks
	Hash                   prefix.Hash // of ids [0, Length); Manifest and Commit
	Cached                 uint64      // prompt positions that were found in a prefix cache
}
