package move

import (
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// EventKind is the kind of an Event.
type EventKind uint8

// The kinds of events.
const (
	ExportStarted  EventKind = iota + 1 // the export of Request to Peer begins
	ImportStarted                       // the import from Peer begins; its blocks are reserved
	AbortRequested                      // the market withdraws the migration
	Received                            // Message arrived
	Listed                              // answer to List: Span and Table
	Frozen                              // answer to Freeze: Span and Table; the request is frozen
	Prepared                            // answer to Prepare: the reservation suffices and a transport is open
	Verified                            // answer to Pull: the round's blocks are verified and known to the engine
	ActionFailed                        // an action of the migration failed, because of Failure
	AdoptRequested                      // Peer, a front end, opens the migration's leg for Request.ID
	SwitchResult                        // answer to SwitchHolder: Answer and Epoch
	HolderResult                        // answer to LookUpHolder: Answer and Epoch
	Gone                                // Peer left or died
	Ticked                              // the time is Now
)

// Request describes the request of an export, as the source knows it.
type Request struct {
	ID       string
	FrontEnd policies.ReplicaID
	Epoch    policies.Epoch
	Length   uint64
	Pinned   policies.PinReason // MayMove, or why the request must stay
	// KeepsKV says that the request stays unless its KV moves with it: the target must not
	// recompute it.
	KeepsKV bool
}

// Event is something that happened at this replica.
type Event struct {
	Kind    EventKind
	Now     policies.Micros // never decreases; if it does, the machine's clock stands still
	Deal    bidask.Deal     // all but Received, Gone and Ticked
	Peer    policies.ReplicaID
	Request Request
	// Engine is this replica's engine, Transports are those that reach Peer, best
	// first; with ExportStarted and ImportStarted.
	Engine     KVFormat
	Transports []string
	Message    Message
	Round      uint32 // Verified
	Span       Span
	Table      *Table
	Partial    bool // Listed: there are more full blocks than one message holds
	Failure    Failure
	// Answer is, with SwitchResult and HolderResult:
	//
	//	Committed  the target holds the request under Epoch (SwitchResult)
	//	Reverted   the source holds it under Epoch
	//	Pending    another migration is switching it
	//	Ended      it has ended, or was never here
	//	Rejected   another holder or epoch (SwitchResult); another holder (HolderResult)
	Answer Kind
	Epoch  policies.Epoch
	Stall  policies.Micros // SwitchResult with Committed: how long the client received no token
	Mode   Mode            // SwitchResult with Committed: Handoff if the migration became one
}

// ActionKind is the kind of an Action.
type ActionKind uint8

// The kinds of actions. Their order matters: the executor carries them out one by one.
const (
	Send         ActionKind = iota + 1 // send Message without blocking; a Live Accept gets its tickets, for Peer
	List                               // list the request's full blocks from Span.From on
	Freeze                             // freeze the request at a step boundary and list the rest from Span.From on
	Thaw                               // let the request continue
	Drop                               // end the request without further output
	Revoke                             // revoke the tickets of the migration
	Prepare                            // check that the reservation holds Span.Length and open one of Offers
	Pull                               // pull Round's Table, verify it and pass it to the engine
	Release                            // stop pulling, and free the reservation unless it is adopted
	AllowAdopt                         // let the leg of the current AdoptRequested adopt the blocks
	DenyAdopt                          // refuse it
	SwitchHolder                       // switch the request's holder at this front end as Message asks, before Deadline
	LookUpHolder                       // look up the holder of Request for Peer
	Completed                          // the migration is complete
	Failed                             // the migration has ended and nothing has changed, because of Failure
)

var actionNames = [...]string{"", "send", "list", "freeze", "thaw", "drop", "revoke", "prepare", "pull", "release", "allow-adopt", "deny-adopt", "switch-holder", "look-up-holder", "completed", "failed"}

// String returns the name of the action, for logs and tests.
func (k ActionKind) String() string {
	if k == 0 || int(k) >= len(actionNames) {
		return "unknown"
	}
	return actionNames[k]
}

// Action is something for the executor to do. A field is zero unless its comment names the Kind.
type Action struct {
	Kind     ActionKind
	Deal     bidask.Deal        // all
	Message  Message            // Send, SwitchHolder
	Peer     policies.ReplicaID // List, Freeze, Thaw, Drop: none; else the other side of the migration
	Request  string             // List, Freeze, Thaw, Drop, LookUpHolder; Failed with TargetFailed
	Epoch    policies.Epoch     // Failed with TargetFailed: the request's new epoch
	Round    uint32             // List, Pull
	Span     Span               // List, Freeze, Prepare, Pull
	Last     bool               // Pull: this is the manifest's table, after which all blocks are here
	Table    *Table             // Pull
	Offers   []transport.Offer  // Prepare
	Deadline policies.Micros    // Prepare, Pull, Freeze, SwitchHolder: when the answer is of no use any more
	Failure  Failure            // Failed
	Stall    policies.Micros    // Completed, at the source: how long the front end's client received no token; 0 if unknown
	Mode     Mode               // Completed: Handoff if the migration became one
}
