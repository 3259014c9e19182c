package bidask

import (
	"strconv"

	"github.com/cascadeinfer/cascade/policies"
)

// Deal identifies one offer of one request.
type Deal struct {
	Seller policies.ReplicaID
	Number uint64 // increases with every offer of the seller
}

// String returns "seller/number".
func (d Deal) String() string { return string(d.Seller) + "/" + strconv.FormatUint(d.Number, 10) }

// MessageKind is the kind of a message. The values are part of the wire format: new
// ones are added at the end, and a Machine ignores those that it does not know.
type MessageKind uint8

// The message kinds; the package comment says when each is sent.
const (
	Ask MessageKind = iota + 1
	Bid
	NoBid
	Confirm
	Reject
	Accept
	Pull
	Busy
	Grant
	Starving
	Ready
	Pass
	Cancel
	Drop
)

var kindNames = [...]string{"", "ask", "bid", "no-bid", "confirm", "reject", "accept", "pull", "busy", "grant", "starving", "ready", "pass", "cancel", "drop"}

// String names the kind, for logs and metrics.
func (k MessageKind) String() string {
	return nameOf(kindNames[:], int(k))
}

// Message is a message about a deal between two replicas.
type Message struct {
	Kind      MessageKind
	From, To  policies.ReplicaID
	Deal      Deal
	Migration policies.Migration // Ask and Confirm
	// Load is the seller's load in Ask and Confirm (all it has offered and not yet
	// transferred), and the buyer's in Bid (policies.Bid).
	Load  policies.Tokens
	Start policies.Micros // Bid
}

// EventKind is the kind of an Event.
type EventKind uint8

// The events.
const (
	Offered            EventKind = iota + 1 // Migration is for sale to Candidates
	Withdrawn                               // Migration.Request has ended or is no longer for sale
	MessageReceived                         // Message arrived
	Reserved                                // KV for Deal is reserved
	ReservationRefused                      // KV for Deal cannot be reserved, or is no longer reserved
	TransferDone                            // the transfer of Deal has completed: the buyer owns the request
	TransferFailed                          // the transfer of Deal has failed: the seller keeps the request
	PeerGone                                // Peer left or died
	OccupancyMeasured                       // Occupancy is the replica's own, as measured now
	DeadlineReached                         // the time of Machine.Next has come
)

// Event is something that happened to a replica.
type Event struct {
	Kind      EventKind
	Now       policies.Micros // monotonic; the machine ignores a step back
	Migration policies.Migration
	// Candidates are the replicas that may buy, in any order; the own replica is ignored.
	// They are read only during this Step.
	Candidates []policies.ReplicaID
	// Costs are the transfer times to the candidates, in the same order; none is negative.
	// nil means that all are equal.
	Costs   []policies.Micros
	Seed    uint64 // seeds the choice among the candidates
	Message Message
	Deal    Deal
	Peer    policies.ReplicaID
	// Over says, with TransferFailed, that the request had ended or was no longer for sale:
	// that is no failure of the two replicas, and counts as none. The machine ignores it.
	Over bool
	// Occupancy as measured; its Incoming is ignored, because the machine computes it.
	Occupancy policies.Occupancy
}

// ActionKind is the kind of an Action.
type ActionKind uint8

// The actions. Their order matters: the driver carries them out one by one.
const (
	Send    ActionKind = iota + 1 // send Message, without waiting
	Reserve                       // reserve KV for Deal until Deadline
	Release                       // free the KV reserved for Deal, or being reserved
	Export                        // serve the transfer of Deal to Peer, which will pull it
	Import                        // pull Deal from Peer into the reserved KV
	Abort                         // abort the transfer of Deal if it can still be aborted
	Return                        // Migration was not sold, because of Reason; its offer has ended
)

var actionNames = [...]string{"", "send", "reserve", "release", "export", "import", "abort", "return"}

// String names the action, for logs and tests.
func (k ActionKind) String() string {
	return nameOf(actionNames[:], int(k))
}

// ReturnReason says why an offer was returned.
type ReturnReason uint8

// The reasons.
const (
	ReturnNoCandidates   ReturnReason = iota + 1 // no candidate
	ReturnNoBids                                 // no candidate bid, or the selector took no bid
	ReturnRejected                               // every bidder rejected or did not answer
	ReturnDropped                                // the buyer dropped its reservation
	ReturnExpired                                // the buyer's reservation expired
	ReturnPeerGone                               // the buyer is gone
	ReturnTransferFailed                         // the transfer failed
	ReturnWithdrawn                              // the request ended
)

var whyNames = [...]string{"", "no candidates", "no bids", "rejected", "dropped", "expired", "peer gone", "transfer failed", "withdrawn"}

// String names the reason, for logs and metrics.
func (w ReturnReason) String() string {
	return nameOf(whyNames[:], int(w))
}

// Action is an action for the driver. Fields that do not list its Kind are zero.
type Action struct {
	Kind      ActionKind
	Message   Message            // Send
	Deal      Deal               // all but Send
	Peer      policies.ReplicaID // Reserve, Release, Export, Import, Abort: the other side
	Migration policies.Migration // Reserve, Export, Import, Return
	Deadline  policies.Micros    // Reserve, Export, Import: when the machine gives up
	Reason    ReturnReason       // Return
}

// nameOf returns the name of a value from 1 on.
func nameOf(names []string, value int) string {
	if value == 0 || value >= len(names) {
		return "unknown"
	}
	return names[value]
}
