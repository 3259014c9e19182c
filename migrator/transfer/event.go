package transfer

import (
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// EventKind is what an Event says.
type EventKind uint8

// The events.
const (
	ExportStarted  EventKind = iota + 1 // Move of Subject to Peer begins
	ImportStarted                       // Move from Peer begins; its blocks are reserved
	AbortRequested                      // Move is no longer wanted
	Received                            // Message came
	Listed                              // the answer to List: Span and Table
	Frozen                              // the answer to Freeze: Span and Table; the request stands still
	Prepared                            // the blocks suffice and a transport is open
	Verified                            // the round's blocks are verified, and the engine has them
	Corrupt                             // some of the round's blocks came with wrong sums
	ActionFailed                        // what was asked for Move did not work, because of Why
	AdoptRequested                      // Peer, a front, opens the leg of Move for Subject.Request
	SwitchResult                        // the answer to Commit: Answer and Epoch
	HolderResult                        // the answer to Look: Answer and Epoch
	Gone                                // Peer left or died
	Ticked                              // time went on
)

// Request is the request that an export is about, as its replica knows it.
type Request struct {
	ID       string
	FrontEnd policies.ReplicaID
	Epoch    policies.Epoch
	Length   uint64
	Pinned   policies.PinReason // MayMove, or why it must stay
}

// Event is something that happened to a replica.
type Event struct {
	Kind    EventKind
	Now     policies.Micros // never goes back; if it does, the machine's time stands still
	Deal    bidask.Deal     // all but Received, Gone and Ticked
	Peer    policies.ReplicaID
	Request Request
	// Engine is the own one, Transports those that reach Peer, best first: with
	// Exporting and Importing.
	Engine     Engine
	Transports []string
	Message    Message
	Round      uint32 // Filled, Corrupt
	Span       Span
	Table      *Table
	Partial    bool // Tabled: there are more full blocks than one message holds
	Failure    Failure
	// Answer is, with Settled and Held:
	//
	//	Done     the target holds the request under Epoch (Settled)
	//	Back     the source holds it under Epoch
	//	Pending  it is being handed over, in another move
	//	Ended    it is over, or was never here
	//	Denied   another holder or epoch (Settled); another holder (Held)
	Answer Kind
	Epoch  policies.Epoch
	Stall  policies.Micros // Settled with Done: how long the client had no token
}

// ActionKind is what an Action asks for.
type ActionKind uint8

// The actions. Their order matters: the driver carries them out one by one.
const (
	Send         ActionKind = iota + 1 // send Message, without waiting; an Offer by Live gets its tickets, for Peer under Epoch
	List                               // tell where Request's full blocks are, from Span.From on
	Freeze                             // stop Request at a step boundary and tell all from Span.From on
	Thaw                               // let Request go on
	Drop                               // end Request without a word
	Revoke                             // end what was granted for Move
	Prepare                            // see that the reservation holds Span.Length and open one of Offers
	Pull                               // pull Round's Table, verify, and tell the engine; again: what was corrupt
	Release                            // stop pulling, and free the reservation unless it is adopted
	AllowAdopt                         // let the leg of the Adopting in progress adopt
	DenyAdopt                          // do not
	SwitchHolder                       // hand over at the front, as the Swap in Message says, until Deadline
	LookUpHolder                       // tell who holds Request; Peer is the one that asks
	Completed                          // the move is done
	Failed                             // the move is over and nothing has changed, because of Why
)

var actionNames = [...]string{"", "send", "list", "freeze", "thaw", "drop", "revoke", "prepare", "pull", "release", "allow-adopt", "deny-adopt", "switch-holder", "look-up-holder", "completed", "failed"}

// String names the action, for logs and tests.
func (k ActionKind) String() string {
	if k == 0 || int(k) >= len(actionNames) {
		return "unknown"
	}
	return actionNames[k]
}

// Action is something to do. Fields beside which its Kind is not named are zero.
type Action struct {
	Kind     ActionKind
	Deal     bidask.Deal        // all
	Message  Message            // Send, Commit
	Peer     policies.ReplicaID // List, Freeze, Thaw, Drop: none; else the other side of the move
	Request  string             // List, Freeze, Thaw, Drop, Look; Failed because it was Returned
	Epoch    policies.Epoch     // Failed because it was Returned: the request's from now on
	Round    uint32             // List, Pull
	Span     Span               // List, Freeze, Prepare, Pull
	Last     bool               // Pull: the manifest's, after which all is there
	Table    *Table             // Pull
	Offers   []transport.Offer  // Prepare
	Deadline policies.Micros    // Prepare, Pull, Freeze, Commit: when the answer is of no use any more
	Failure  Failure            // Failed
	Stall    policies.Micros    // Moved, at the source: how long the front's client had no token; 0 for unknown
}
