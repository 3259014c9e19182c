package session

import (
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// Leg is a handle of one engine's generation. The machine compares handles and
// hands them back; it never calls them.
type Leg any

// EventKind says what an Event is.
type EventKind uint8

// The events. Those of the pump answer its last directive; the others come from
// any goroutine of the driver, at any time.
const (
	// The pump's.
	LegOpened    EventKind = iota + 1 // Leg runs at Replica; Chunk is its first one: begins the stream, or answers Open
	OpenFailed                        // answers Open: Err; Lost says that the engine had the request and was lost
	ReplicaFound                      // answers Seek: Replica may continue the stream
	NoReplica                         // answers Seek: none can
	ChunkArrived                      // answers Read: Leg brought Chunk
	LegEnded                          // answers Read: Leg cannot be read any more, because of Err
	Resumed                           // answers Resume, and Wait once the migration has ended
	ClientFailed                      // a write to the client failed

	// Everyone's.
	MigrationRequested // a migration away from From in Epoch
	FreezeRequested    // the target of Migration is ready for a frozen stream
	TextChecked        // answers CheckText of Migration: Aligned, or Err if that cannot be found out
	MigrationLegOpened // Leg runs at Replica for Migration; Chunk has its first token
	MigrationFailed    // Migration cannot go on, because of Err
	MigrationRetried   // the leg under the number Migration was discarded; Migration opens another one
	RequestEnded       // the context of the client's request ended, because of Err
	HandlerReturned    // nothing can be written to the client any more
)

// Event is something that happened to a stream. The machine keeps a Chunk only
// until the step after it, or a clone.
type Event struct {
	Kind    EventKind
	Leg     Leg
	Chunk   *openai.Chunk
	Err     error
	Replica policies.ReplicaID // LegOpened, ReplicaFound, MigrationLegOpened
	// Limit is, with the first LegOpened, how many tokens the leg's engine generates
	// at most, whatever the request asks for; 0 for unknown.
	Limit policies.Tokens
	// Losses is, with the first LegOpened, how many engines the request has lost before.
	Losses int
	Lost   bool // with OpenFailed: the engine had the request and was lost
	// Migration is the number that MigrationBegan, or MigrationRenewed after it, gave.
	Migration policies.Epoch
	// Fingerprint is what the engine of the first leg calls its build, as raw JSON;
	// nil while it is unknown. With LegEnded, LegOpened and MigrationLegOpened.
	Fingerprint []byte

	// Aligned is, with TextChecked, whether the last of the ids ends with a character.
	Aligned bool

	// Of MigrationRequested.
	From  policies.ReplicaID
	Epoch policies.Epoch
	// Length is the number of token ids at which a live migration freezes the
	// stream, and Hash the hash of these ids. Length 0 stands for a migration by
	// re-prompting, which freezes it where the client's text ends with a character.
	Length int
	Hash   prefix.Hash

	// Cached is, with MigrationLegOpened, how many prompt tokens the first leg found
	// in its engine's prefix cache, −1 for unknown.
	Cached int
}

// ActionKind says what an Action asks for.
type ActionKind uint8

// The actions.
const (
	// The pump's, in order. The step of a pump's event ends with one directive.
	Write      ActionKind = iota + 1 // write Chunk to the client, changed by Edit
	WriteDone                        // write Chunk, which is [DONE]; IDs, of which Prompt are the prompt's, are the answer's
	WriteError                       // write an error event because of Err
	Probe                            // have the own engine's health checked now
	Report                           // log what became of a lost leg: Loss, because of Err
	// The directives.
	Read   // read Leg's next chunk
	Resume // step again
	Wait   // wait until the migration has ended
	Seek   // find a replica that can continue the stream, none of Tried
	Open   // open a leg at Replica under Epoch that continues IDs
	End    // the stream is over; Err is not nil if an engine cut it

	// Everyone's.
	Close            // close Leg, whose request has ended
	Leave            // close Leg, whose request continues elsewhere
	MigrationBegan   // the request is accepted; Migration is its number and the epoch of its leg
	MigrationRefused // it is not, because of Err
	MigrationRenewed // the migration goes on under the number Migration, which is the epoch of its next leg
	CheckText        // for Migration: find out whether the last of IDs ends with a character
	StreamFrozen     // for Migration: the client has exactly IDs, of which Prompt are the prompt's
	MigrationEnded   // Migration ended; Err is nil if its leg took over; the stream goes on in Epoch
	RescueEnded      // the rescue ended: Rescue
)

var actionNames = [...]string{"", "write", "write-done", "write-error", "probe", "report", "read", "resume", "wait", "seek", "open", "end",
	"close", "leave", "migration-began", "migration-refused", "migration-renewed", "check-text", "stream-frozen", "migration-ended", "rescue-ended"}

// String names the action, for tests.
func (k ActionKind) String() string {
	if int(k) < len(actionNames) {
		return actionNames[k]
	}
	return "unknown"
}

// Action is something that the driver does for a stream. What it refers to must
// not be changed; Edit holds until the pump's next step.
type Action struct {
	Kind  ActionKind
	Loss  Loss // Report
	Leg   Leg
	Chunk *openai.Chunk
	Edit  *openai.Edit
	Err   error
	*Detail
}

// Detail has what only rare actions refer to. It is nil in a Write and a Read, of which
// every token has one each: they are copied, and must be small.
type Detail struct {
	Aligned   bool // Open: the client's text ends where IDs end
	TextIDs   int  // Open: the client has the text of IDs[:TextIDs], except a character that the last of them has only begun
	Replica   policies.ReplicaID
	Epoch     policies.Epoch
	Migration policies.Epoch
	IDs       []uint32
	Prompt    int
	Cached    int // Leave: prompt tokens that the leg found in its engine's cache, −1 for unknown
	Tried     []policies.ReplicaID
	Rescue    *Rescue
}

// Loss says what follows the loss of a leg.
type Loss uint8

// What follows the loss of a leg.
const (
	Rescuing  Loss = iota + 1 // a replica is sought
	Concluded                 // the client has the whole text; the machine writes what follows it
	Exhausted                 // the stream has lost MaxLosses engines in a row; it ends
)

// Rescue is the outcome of a rescue.
type Rescue struct {
	Epoch    policies.Epoch     // of the last attempt
	From, To policies.ReplicaID // To is where it was tried last, "" for nowhere
	Length   int                // ids of the stream when it lost its engine
	Err      error              // why the stream must end; nil if it goes on
}
