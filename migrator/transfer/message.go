package transfer

import (
	"github.com/cascadeinfer/cascade/migrator/internal/tokenhash"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// Version numbers the protocol. Replicas whose versions differ too much move
// requests by Reprompt, whose messages never change.
const (
	VersionMin = 1
	VersionMax = 1
)

// Kind is what a message says. The values are what replicas exchange: new ones
// are added at the end, and a Machine ignores those that it does not know.
type Kind uint8

// The kinds; the package comment says who sends them when.
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

// String names the kind, for logs and metrics.
func (k Kind) String() string {
	if k == 0 || int(k) >= len(kindNames) {
		return "unknown"
	}
	return kindNames[k]
}

// Mode is how a request moves. The values are what replicas exchange.
type Mode uint8

// The ways.
const (
	Reprompt Mode = iota + 1 // the target recomputes from the token ids
	Live                     // the target pulls the source's KV blocks
)

// String names the way, for tables and metrics.
func (w Mode) String() string {
	switch w {
	case Reprompt:
		return "reprompt"
	case Live:
		return "live"
	}
	return "unknown"
}

// Failure says why a move failed. The values are what replicas exchange.
type Failure uint8

// The reasons.
const (
	UnknownToPeer    Failure = iota + 1 // the peer knows nothing of the move
	PeerTimeout                         // the peer said nothing for too long
	PeerGone                            // the peer is gone
	FrontEndGone                        // the request's front is gone
	DeadlineExceeded                    // the move took too long
	Withdrawn                           // the market took it back
	AlreadyMigrating                    // the request is being moved already
	Pinned                              // the request may not move
	RequestEnded                        // the request is over
	EngineRefused                       // the engine refused its part
	OutOfBlocks                         // the reservation is gone, or too small
	NoTransport                         // no transport got through
	ChecksumMismatch                    // blocks kept arriving with wrong sums
	Preempted                           // the engine gave the request's blocks back
	TableMismatch                       // the two sides' tables do not fit
	TargetFailed                        // the front could not go on at the target
	HeldElsewhere                       // another replica holds the request
)

var whyNames = [...]string{"", "unknown to the peer", "peer timeout", "peer gone", "front end gone", "deadline exceeded", "withdrawn", "already migrating", "pinned", "request ended",
	"engine refused", "out of blocks", "no transport", "checksum mismatch", "preempted", "table mismatch", "target failed", "held elsewhere"}

// String names the reason, for logs and metrics.
func (w Failure) String() string {
	if w == 0 || int(w) >= len(whyNames) {
		return "unknown"
	}
	return whyNames[w]
}

// Table is the bulk of a Round or a Manifest: for the driver only.
type Table struct {
	IDs    []uint32 // of the positions from Message.From on
	Blocks []uint32 // the source's, that hold them
	Sums   []uint32 // of each region of each of Blocks
}

// Message is what one replica tells another about a move. Fields beside which
// its Kind is not named are zero.
type Message struct {
	Kind     Kind
	From, To policies.ReplicaID
	Deal     bidask.Deal // its Seller is the source
	Round    uint32      // Round, Manifest, Pulled, Pulling
	Failure  Failure     // Abort
	// Stall is how long the front's client had no token because of the move; Done,
	// 0 for unknown.
	Stall policies.Micros
	// Epoch is the request's: the source's with Offer, Swap and Whose, the one it
	// is under now with Done and Back.
	Epoch    policies.Epoch
	Request  string             // Offer, Swap, Whose
	FrontEnd policies.ReplicaID // Offer
	Target   policies.ReplicaID // Swap
	Mode     Mode               // Offer, Swap
	// Engine is the sender's with Open and Offer.
	Engine                 Engine
	VersionMin, VersionMax uint32            // Open
	Transports             []string          // Open: what the target can use, best first
	Offers                 []transport.Offer // Offer: filled in by the driver
	Span                                     // Offer (Length alone), Round, Manifest, Swap
	Table                  *Table            // Round, Manifest
}

// Engine is what two sides compare of their engines.
type Engine struct {
	Fingerprint uint64 // of its blocks; 0 when it serves none
	BlockTokens uint32
	TokenBytes  uint64 // of KV, on the engine that this one is or stands for
}

// Span is what a table covers: positions [From, Computed) of KV, and of ids
// [From, Length) in a Manifest, [From, Computed) in a Round, whose blocks are
// full.
type Span struct {
	From, Computed, Length uint64
	Generation             uint64         // of the source's blocks
	Hash                   tokenhash.Hash // of ids [0, Length); Manifest and Swap
	Prompt                 uint64         // positions that are the client's prompt, as the leg was given it
	Cached                 uint64         // of them, found in a prefix cache
}
