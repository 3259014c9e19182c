// Package transfer moves one running request from a source replica to a target,
// while its front, the replica that accepted its client, goes on serving it. A
// Machine is one replica's part in all moves: source of some, target of others,
// front of any. It is a pure state machine: Step takes an event and appends
// actions; it reads no clock, touches no block and sends nothing itself.
//
// It does not decide what moves where (policies/bidask does, and its deal names
// the move), nor who owns a request: the front's register does, by
// compare-and-swap of holder and epoch. The machine asks, and abides.
//
// # The protocol
//
// The target talks, the source answers; then the source talks to the front,
// which answers. Who talks repeats itself every Retry until it is answered.
//
//	target                          source                           front
//	  ── Open {own engine} ────────►  chooses the way
//	  ◄── Offer {way, tickets} ─────
//	  ── Pulled {0} ───────────────►  lists the full blocks, as they are
//	  ◄── Round {1, table, sums} ───  and generates on
//	  ── Pulling {1} ··············►  pulls, verifies, fills
//	  ── Pulled {1} ───────────────►  … another Round while much is left
//	  ◄── Pending ··················  (to whoever repeats itself meanwhile)
//	  ── Pulled {n} ───────────────►  little is left: freezes
//	  ◄── Manifest {rest, ids hash}─
//	  ── Ready ────────────────────►  ── Swap {epoch e, length} ──────►  CAS (source,e) → (target,e+1),
//	  ◄── Pending ··················  ◄── Pending ····················   opens the leg at the target, which
//	  adopts, when the leg names it   ── Swap, then Whose ···········►   adopts; the first token decides
//	  ◄── Done ─────────────────────  ◄── Done {e+1} ─────────────────   the target holds it: drop
//	  ◄── Abort ────────────────────  ◄── Back {e+2} ─────────────────   the source holds it: thaw
//	  ◄── Abort ────────────────────  ◄── Ended ──────────────────────   nobody does: drop
//	  ◄── Abort ────────────────────  ◄── Denied ─────────────────────   another one does: drop
//
// Either side of a move ends it with Abort, which is answered by nobody. That is
// the way Live. By Reprompt, Ready follows the Offer at once, the source never
// freezes, and the front gives the target all token ids. The way is Live when
// both engines serve blocks of one fingerprint, the versions overlap, both have
// a transport that reaches, and the request has a full block; no request moves
// either way that policies.Movable holds.
//
// A Round that one message cannot hold is several, one after the other, each
// pulled like any; they count as one.
//
// Done tells for how long the front's client had no token.
//
// Swap begins the hand-over at the front, once. Whose does not: a front that has
// not seen the Swap answers Whose from its register, and from then on takes the
// Swap, should it come late, for a Whose.
//
// The source's states, the target's, and the front's for one move:
//
//	offered ─Open─► rounds ⇄ listing ─► freezing ─► manifest ─Ready─► swapping ─► ended
//	opening ─Offer─► preparing ─► asking ⇄ pulling ─► ready ─► adopted ─► ended
//	committing or looking ─► answered
//
// # Invariants
//
//  1. One owner: the source says Swap only while it is frozen (Reprompt: while
//     it runs), and after that it neither thaws nor drops before the front has
//     answered or is gone. It never guesses.
//  2. A source that has frozen thaws or drops. Until Swap that takes Frozen at
//     most, whatever the target does.
//  3. The target is Ready only when every block and every id up to the manifest's
//     length was verified, and each Pull continues where the last one ended. A
//     request whose blocks were given back since the first round is not moved.
//  4. A reservation is adopted once, while its move is Ready here, by the front
//     that the Offer named. It is released when the move ends here; an engine
//     leaves alone what a request has adopted.
//  5. A front hands a request over at most once per move, and gives one answer.
//  6. Each Exporting and Importing ends in exactly one Moved or Failed. A request
//     is in one export at a time.
//  7. Nothing waits without a deadline, but a source that has said Swap: it waits
//     for the front or for news of its death.
//  8. Messages that are lost, doubled, late, out of order, unknown or a
//     stranger's cost time, or the move; never a block, a token or an owner.
//
// # Faults
//
//	fault                          noticed by            what is done
//	target dies, hangs, cut off    Silence, Gone         source thaws, goes on; no stall before the freeze
//	… after Swap                   the front, no token   Back: source thaws
//	source dies, hangs, cut off    Silence, then Lease   target releases; the front rescues the stream
//	front dies                     Gone                  the request ends: its source drops it
//	ticket, transport or pull fail Broken                the next transport (driver), then Abort
//	a block has a wrong sum        Corrupt               pulled again, twice at most, then Abort
//	blocks given back (preempted)  generation            Abort, before the target has ever been ready
//	reservation gone or outgrown   Broken                Abort
//	freeze or table refused        Broken                Abort
//	request ends, client leaves    Broken, Ended         Abort; what is frozen is dropped
//	two moves of one request       6, the epoch          the later one is Back or Denied
//	Swap or its answer lost        Retry                 the same answer again
//
// # What the driver owes
//
// It carries out the actions of one move in order, one at a time; Thaw, Drop,
// Release and Revoke cut short what runs before them, but for a Freeze. It
// answers List with Tabled, Freeze with Frozen, Prepare with Prepared, Pull with
// Filled or Corrupt, each of them otherwise with Broken; Commit with Settled and
// Look with Held; all in bounded time unless they were cut short. It repeats
// Thaw and Drop until the engine has answered. It vouches for Message.From,
// tells Gone only of peers that tell the same of this replica, and calls Step
// with Ticked at Next. A table belongs to the driver: the machine passes the
// pointer on and never looks behind it.
package transfer
