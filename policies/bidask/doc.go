// Package bidask is the market in which replicas sell running requests to each
// other (paper, section "Decentralized Load (Re)Balancing"). A Machine is one
// replica's part in it, seller and buyer at once. It is a pure state machine:
// Step takes an event and appends actions; it reads no clock, sends nothing and
// moves nothing itself. The migrator drives it with real messages, the
// simulator with virtual ones.
//
// It is not the transfer of a request: how KV travels and who owns a request
// after a fault is the transfer layer's to say. Nor does it decide what to sell
// (policies/outlier, the stages' ranges) or what may move (policies.Movable).
//
// # The protocol
//
// A deal is one offer of one request: the seller's name and a number. Messages
// about a deal, d being the number of candidates asked:
//
//	seller                          buyer
//	  ── Ask {length, own load} ────►  d of them; answered at once
//	  ◄── Bid {load, start} / NoBid ─  reserves nothing
//	  ── Confirm ───────────────────►  to the selected bidder
//	  ◄── Reject ────────────────────  no room (any more): the next bidder's turn
//	  ◄── Accept ────────────────────  KV reserved under a lease, but no slot free
//	  ◄── Pull ──────────────────────  (also: accepted) a receive slot is held
//	  ── Busy ──────────────────────►  no send slot: the buyer goes on to its next
//	  ── Grant ─────────────────────►  a send slot is held: the transfer begins
//	  ◄── Starving ──────────────────  skipped too often: please promise a slot
//	  ── Ready ─────────────────────►  the promised slot is held: Pull now
//	  ◄── Pass ──────────────────────  not now; it comes first when a slot is free
//	  ── Cancel ────────────────────►  the offer is gone, free what you reserved
//	  ◄── Drop ──────────────────────  the reservation is gone, sell it elsewhere
//
// The seller's side of a deal:
//
//	waiting ─ask is free─► asking ─all bids or deadline─► confirming ─Accept, Pull─► sold
//	                          │ none                         │ Reject, deadline       │ Pull and a free slot
//	                          ▼                              └► next bidder, or none  ▼
//	                       returned ◄── Drop, deadline, peer gone ──────────────── exporting
//	                          ▲                                                       │
//	                          └──────────────────────── Failed ───────────────────────┴─ Moved ─► gone
//
// The buyer's side:
//
//	Confirm ─► reserving ─Reserved─► queued ─free slot─► pulling ─Grant─► importing ─Moved─► gone
//	                │ Refused           ▲   Busy, deadline  │                │ Failed
//	                ▼                   └───────────────────┘                ▼
//	             Reject            lease over, Cancel: released           released
//
// The buyer's queue is ordered by the sellers' loads, the greatest first, equal
// ones by arrival. A seller's load is all it has offered and not yet moved, as
// its last Ask or Confirm told.
//
// A buyer that was skipped Skips times stops asking that seller and tells it
// Starving. The seller promises its next free slot: it sends Ready before
// anybody else gets one. The buyer does not wait for that (the paper's does):
// it serves its other entries meanwhile, and when the Ready finds no free slot
// it passes, and the entry comes first at its next free one. Promises end with
// a deadline.
//
// Where links differ, the driver says what a transfer to each candidate costs
// (Event.Costs). Half of those that are asked are then near ones, and a bid counts
// only if no cheaper bidder has as little load, give or take the request.
//
// # Invariants
//
//  1. Slots: exports and slots held for a Ready never exceed SendSlots; imports
//     and unanswered Pulls never exceed ReceiveSlots. The two are separate, so
//     that a replica which sends at full width can still receive.
//  2. Reservations: each Reserve is followed by exactly one of Release, the
//     event Refused, and the event Moved.
//  3. Sales: an offer ends exactly once, by Return or by the event Moved.
//  4. A deal is exported at most once, to the one buyer that has reserved for it
//     and pulls it; never after its Return.
//  5. There is one outstanding ask per seller, so that a bid which follows
//     counts the sale before.
//  6. No step waits for another replica without a deadline, and a slot is held
//     only for a transfer or for one answer. Nobody blocks on memory: what does
//     not fit is rejected. With 1 there is no cycle of waiting.
//  7. Messages that are late, doubled, out of order or unknown cost messages,
//     never a slot, a reservation or a request for longer than their deadlines.
//     A message about a deal that the receiver does not know is answered with
//     Cancel or Drop.
//  8. A move costs 2d+3 messages when the first bidder accepts and both have
//     slots, and grows with neither fleet nor stage. Each skip adds 2.
//
// # What the driver owes
//
// It answers each Reserve with Reserved or Refused, each Export and Import
// with Moved or Failed, in bounded time, also after Abort, which may come too
// late. It vouches for Message.From. It calls Step with Ticked at Next. Numbers
// of deals are never used twice: after a restart Config.First is larger than
// any number before.
//
// Replicas may run different quote and select rules: messages carry facts, and
// each side decides alone.
package bidask
