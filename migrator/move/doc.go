// Package move migrates a running request, with its KV, from a source replica to a target
// replica, while the request's front end keeps serving its client. The front end is the
// replica that accepted the client's stream; it may be the source, the target or a third
// replica.
//
// An [Executor] executes the migrations of one replica. It drives a pure state machine with
// the engine, the transports, the front end and the peer network, and reports the result of
// each migration to the market.
//
// A [Machine] is one replica's part in all migrations: source of some, target of
// others, front end of any. Step takes an event and appends actions; it reads no clock,
// touches no KV block and sends nothing.
//
// The machine does not choose what migrates where: policies/bidask does, and its
// deal names the migration. It does not decide which replica holds a request either:
// the front end's register does, by compare-and-swap of holder and epoch. The
// machine asks the front end and obeys the answer.
//
// # The protocol
//
// The target sends requests and the source replies; then the source sends requests
// to the front end, which replies. A requester repeats its message every
// retryInterval until it is answered.
//
//	target                          source                           front end
//	  ── Open {own engine} ────────►  chooses the mode
//	  ◄── Accept {mode, tickets} ───
//	  ── Pulled {0} ───────────────►  lists the full blocks without
//	  ◄── Round {1, table, sums} ───  stopping the request
//	  ── Pulling {1} ··············►  (keep-alive: pulling and verifying)
//	  ── Pulled {1} ───────────────►  … another Round while many blocks are left
//	  ◄── Pending ··················  (reply to repeated messages meanwhile)
//	  ── Pulled {n} ───────────────►  few blocks are left: freezes the request
//	  ◄── Manifest {rest, ids hash}─
//	  ── Ready ────────────────────►  ── Commit {epoch e, length} ────►  CAS (source,e) → (target,e+1),
//	  ◄── Pending ··················  ◄── Pending ····················   opens a leg at the target, which
//	  adopts when the leg names it    ── Commit, later Query ·········►   adopts the blocks; first token decides
//	  ◄── Committed ────────────────  ◄── Committed {e+1} ────────────   the target holds it: drop
//	  ◄── Abort ────────────────────  ◄── Reverted {e+2} ─────────────   the source holds it: thaw
//	  ◄── Abort ────────────────────  ◄── Ended ──────────────────────   the request has ended: drop
//	  ◄── Abort ────────────────────  ◄── Rejected ───────────────────   another replica holds it: drop
//
// Either side of a migration ends it with Abort, which has no reply.
//
// The diagram shows the mode Live: the target pulls the KV blocks. In the mode
// Reprompt, Ready follows Accept at once, the source never freezes, and the front end
// sends all token ids to the target, which recomputes the KV. The source chooses Live
// when both engines serve blocks of one fingerprint, the protocol versions overlap,
// the two have a transport in common and the request has at least one full block. A
// request that policies.Movable pins does not migrate in either mode. A request that keeps
// its KV (Request.KeepsKV) migrates in the mode Handoff instead of Reprompt: the same
// messages, but the front end leaves the stream where it is if the target's engine cannot
// fetch the KV.
//
// A Round that does not fit into one message is split into several, each of them
// pulled as a Round of its own; together they count as one.
//
// Committed carries the time for which the front end's client received no token, and
// whether a Reprompt has become a Handoff: the front end decides that, after Commit, and
// the engines copy the KV among themselves.
//
// Commit starts the switch at the front end, once. Query never starts it: a front end
// that has not seen the Commit answers Query from its register, and treats a Commit
// that arrives later as a Query.
//
// The states of the source, the target and the front end for one migration:
//
//	awaitingOpen ─Open─► copying ⇄ listing ─► freezing ─► verifying ─Ready─► committing ─► ended
//	awaitingAccept ─Accept─► preparing ─► awaitingTable ⇄ pulling ─► ready ─► adopted ─► ended
//	switching or looking up ─► answered
//
// # Invariants
//
//  1. One holder: the source sends Commit only while the request is frozen (Reprompt:
//     while it runs). After that it neither thaws nor drops the request before the
//     front end has answered or is gone. It never guesses.
//  2. A source that has frozen a request thaws or drops it. Before Commit this takes
//     at most FreezeTimeout, whatever the target does.
//  3. The target is ready only when every block and every id up to the manifest's
//     length is verified, and each Pull starts where the previous one ended. A
//     request whose blocks were freed since the first round does not migrate.
//  4. A reservation is adopted at most once, while its migration is ready here, by
//     the front end that Accept named. It is released when the migration ends here;
//     an engine does not free blocks that a request has adopted.
//  5. A front end switches a request at most once per migration, and gives one answer.
//  6. Each ExportStarted and ImportStarted ends in exactly one Completed or Failed. A
//     request is in at most one export at a time.
//  7. Every wait has a deadline, except that of a source that has sent Commit: it
//     waits for the front end's answer or for the report that the front end is gone.
//  8. Messages that are lost, duplicated, late, reordered, unknown or sent by an
//     unrelated replica cost time or the migration; never a block, a token or the
//     single holder.
//
// # Faults
//
//	fault                                detected by           action
//	target dies, hangs, is partitioned   PeerTimeout, Gone     source thaws; before the freeze nothing stalls
//	… after Commit                       front end, no token   Reverted: source thaws
//	source dies, hangs, is partitioned   PeerTimeout, then     target releases; the front end rescues the
//	                                     ReadyTimeout          stream
//	front end dies                       Gone                  the request ends: its source drops it
//	ticket, transport or pull fails      ActionFailed          the next transport (executor), then Abort
//	a block has a wrong checksum         transport             pulled again, at most twice (executor), then Abort
//	blocks freed (preemption)            generation            Abort, before the target was ever ready
//	reservation gone or too small        ActionFailed          Abort
//	freeze or table refused              ActionFailed          Abort
//	request ends, client disconnects     ActionFailed, Ended   Abort; a frozen request is dropped
//	two migrations of one request        invariant 6, epoch    the later one is Reverted or Rejected
//	Commit or its answer lost            retryInterval         the same answer again
//
// # The executor
//
// The executor carries out the actions of one migration in order, one at a time. Thaw,
// Drop, Release and Revoke cancel the actions before them, except a Freeze. The executor
// answers List with Listed, Freeze with Frozen, Prepare with Prepared, and Pull with
// Verified; each of these with ActionFailed if it fails; SwitchHolder with
// SwitchResult and LookUpHolder with HolderResult. It answers in bounded time unless
// the action was cancelled. It repeats Thaw and Drop until the engine has answered. It
// authenticates Message.From, reports Gone only for peers that report the same of this
// replica, and calls Step with Ticked at Next. A table belongs to the executor: the
// machine passes the pointer on and never looks into it.
//
//  1. One goroutine owns the state machine. Blocking work runs on other goroutines: for
//     one migration and role in order, one job at a time; Run waits for all of them.
//  2. The work between a request's freeze and the front end's answer does not grow with
//     the request's length: ids, checksums and hash are sent with the rounds.
//  3. MarkFilled is called only for blocks that a transport has verified, and for the
//     last ones only if the ids have the manifest's hash.
//  4. A frozen request is thawed or dropped and a reservation released, whatever else
//     fails. If the engine cannot be reached, or refuses for too long, its session ends,
//     which does both.
package move
