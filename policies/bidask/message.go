package bidask

import (
	"strconv"

	"github.com/cascadeinfer/cascade/policies"
)

// Deal names one offer of one request.
type Deal struct {
	Seller policies.ReplicaID
	Number uint64 // grows with every offer of the seller
}

// String returns "seller/number".
func (d Deal) String() string { return string(d.Seller) + "/" + strconv.FormatUint(d.Number, 10) }

// MessageKind is what a message says. The values are what replicas exchange: new ones
// are added at the end, and a Machine ignores those that it does not know.
type MessageKind uint8

// The kinds; the package comment says who sends them when.
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
	if k == 0 || int(k) >= len(kindNames) {
		return "unknown"
	}
	return kindNames[k]
}

// Message is what one replica tells another about a deal.
type Message struct {
	Kind      MessageKind
	From, To  policies.ReplicaID
	Deal      Deal
	Migration policies.Migration // Ask and Confirm
	// Load is the seller's with Ask and Confirm (all it has offered and not yet
	// moved), the buyer's with Bid (policies.Bid).
	Load  policies.Tokens
	Start policies.Micros // Bid
}

// EventKind is what an Event says.
type EventKind uint8

// The events.
const (
	Offered            EventKind = iota + 1 // Handover is for sale to Candidates
	Withdrawn                               // Handover.Request is over or no longer for sale
	MessageReceived                         // Message came
	Reserved                                // KV for Deal is reserved
	ReservationRefused                      // KV for Deal cannot be reserved, or was taken back
	TransferDone                            // the transfer of Deal is done: the buyer owns the request
	TransferFailed                          // the transfer of Deal is over: the seller keeps the request
	PeerGone                                // Peer left or died
	OccupancyMeasured                       // Position is the replica's own now
	DeadlineReached                         // time went on
)

// Event is something that happened to a replica.
type Event struct {
	Kind      EventKind
	Now       policies.Micros // never goes back; if it does, the machine's time stands still
	Migration policies.Migration
	// Candidates are the replicas that may buy, in any order, the own one not
	// counted. They are read in the same Step only.
	Candidates []policies.ReplicaID
	// Costs are what the transfer to each candidate would take, in their order, by
	// the links between the two; none is negative. nil: all are alike.
	Costs   []policies.Micros
	Seed    uint64 // chooses among the candidates
	Message Message
	Deal    Deal
	Peer    policies.ReplicaID
	// Occupancy is as measured; its Incoming is ignored, the machine keeps that.
	Occupancy policies.Occupancy
}

// ActionKind is what an Action asks for.
type ActionKind uint8

// The actions. Their order matters: the driver carries them out one by one.
const (
	Send    ActionKind = iota + 1 // send Message, without waiting
	Reserve                       // reserve KV for Deal, to be freed at Deadline if nothing happens
	Release                       // free what was reserved for Deal, or is about to be
	Export                        // serve the transfer of Deal to Peer, which will pull it
	Import                        // pull Deal from Peer into what was reserved
	Abort                         // stop the transfer of Deal if it is not too late
	Return                        // Handover was not sold, because of Why; its offer is over
)

var actionNames = [...]string{"", "send", "reserve", "release", "export", "import", "abort", "return"}

// String names the action, for logs and tests.
func (k ActionKind) String() string {
	if k == 0 || int(k) >= len(actionNames) {
		return "unknown"
	}
	return actionNames[k]
}

// ReturnReason says why an offer was returned.
type ReturnReason uint8

// The reasons.
const (
	ReturnNoCandidates   ReturnReason = iota + 1 // no candidate
	ReturnNoBids                                 // nobody bid, or the selector took no bid
	ReturnRejected                               // every bidder rejected or fell silent
	ReturnDropped                                // the buyer gave its reservation up
	ReturnExpired                                // the buyer's lease is over
	ReturnPeerGone                               // the buyer is gone
	ReturnTransferFailed                         // the transfer failed
	ReturnWithdrawn                              // the request ended
	ReturnTooManyOffers                          // too many offers
)

var whyNames = [...]string{"", "nobody to ask", "no bids", "rejected", "dropped", "expired", "peer gone", "transfer failed", "withdrawn", "too many offers"}

// String names the reason, for logs and metrics.
func (w ReturnReason) String() string {
	if w == 0 || int(w) >= len(whyNames) {
		return "unknown"
	}
	return whyNames[w]
}

// Action is something to do. Fields beside which its Kind is not named are zero.
type Action struct {
	Kind      ActionKind
	Message   Message            // Send
	Deal      Deal               // all but Send
	Peer      policies.ReplicaID // Reserve, Release, Export, Import, Abort: the other side
	Migration policies.Migration // Reserve, Export, Import, Return
	Deadline  policies.Micros    // Reserve, Export, Import: when the machine gives up
	Reason    ReturnReason       // Return
}
