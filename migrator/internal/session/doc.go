// Package session is the state machine of one client's stream: which engine's
// events reach the client, when the stream may go on at another replica, and how
// it ends. A Machine is pure: Step takes an event and appends actions; it reads no
// clock, calls no leg and writes to no client. The driver is migrator/frontend.
//
// # The pump
//
// One goroutine of the driver, the pump, reads the present leg and writes to the
// client. It steps the machine with what happened and carries out the actions in
// order; the last one, a directive, says what to do before its next event:
//
//	LegOpened ───► Write, Read ──► ChunkArrived ──► Write, Read ──► … WriteDone, End
//	                     └───────► LegEnded ──► Seek ──► ReplicaFound ──► Open ──► LegOpened
//	                                      └──► Wait ──► Resumed
//
// Other goroutines step it too: a migration claims the stream, freezes it and
// brings a leg; the request's context ends. What they change, the pump learns with
// its next event.
//
// # States
//
//	starting ──LegOpened──► relaying ──MigrationRequested──► claimed ──FreezeRequested──► freezing ⇄ checking ──► frozen
//	                         ▲  ▲ └────────LegEnded───────► seeking ⇄ opening                                       │
//	                         │  └──LegOpened, NoReplica────────┘─────────┘                                          │
//	                         └───────MigrationLegOpened, MigrationFailed────────────────────────────────────────────┘
//	                                                  every state ──► ended
//
// A lost leg leaves the state as it is while chunks that were held back are still
// to be written, and while a frozen stream waits for its migration's leg.
//
// # A migration
//
// MigrationRequested claims the stream in the holder and epoch that it names; all
// other requests are stale until the migration has ended. A live migration freezes
// the stream when the client has exactly the ids that the target's engine was
// given, one by re-prompting when the client's text ends with a character. After a
// chunk with several tokens, the driver finds that out while the next ones wait. From
// then on the chunks of the present leg are held back. The first token of the
// migration's leg commits: the stream goes on with that leg in epoch+1 and what was
// held is dropped. On any failure before it the held chunks are written and the
// stream goes on with the old leg in epoch+2. A migration that has discarded a leg may
// open another one, whose epoch is one higher, as are then those above. A stream that
// ends while it migrates ends where it was.
//
// # A rescue
//
// A leg is lost when it ends without [DONE], or its engine reports that it failed or
// has aborted the request. If the migration under way has all ids that it needs, the stream waits for it. If the
// client has the whole text, the machine writes what follows it. Else the pump
// seeks a replica, MaxAttempts times at most, and the stream goes on there from the
// client's ids. Each attempt has an epoch of its own.
package session
