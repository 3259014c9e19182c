// Package bidask is the market in which replicas sell running requests to each
// other (paper, section "Decentralized Load (Re)Balancing"). The seller of a
// request asks some candidates for bids and confirms the best bidder; the buyer
// reserves KV and pulls the request when both have a free transfer slot.
//
// A Trader is a replica's part in it: a selector chooses what to offer, and a Machine negotiates.
//
// A Machine is one replica's side of the market, seller and buyer at once. It is a
// pure state machine: Step takes an event and appends actions; it reads no clock,
// sends nothing and transfers nothing. The migrator drives it with real messages,
// the simulator with virtual ones.
//
// The transfer layer, not this package, defines how KV is transferred and which
// replica owns a request after a fault. What to sell follows from a Detector
// and the ranges of the stages, what may move from policies.Movable.
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
//	  ◄── Reject ────────────────────  no room (any more): the next bidder is confirmed
//	  ◄── Accept ────────────────────  KV reserved under a lease, but no slot free
//	  ◄── Pull ──────────────────────  (also: accepted) a receive slot is held
//	  ── Busy ──────────────────────►  no send slot: the buyer goes on to its next
//	  ── Grant ─────────────────────►  a send slot is held: the transfer begins
//	  ◄── Starving ──────────────────  Busy too often: asks for the promise of a slot
//	  ── Ready ─────────────────────►  the promised slot is held: Pull now
//	  ◄── Pass ──────────────────────  not now; it comes first when a slot is free
//	  ── Cancel ────────────────────►  the offer has ended: the buyer frees the reservation
//	  ◄── Drop ──────────────────────  the reservation has ended: the seller offers it elsewhere
//
// The seller's side of a deal:
//
//	waiting ─ask is free─► asking ─all bids or deadline─► confirming ─Accept, Pull─► accepted
//	                          │ none                         │ Reject, deadline       │ Pull and a free slot
//	                          ▼                              └► next bidder, or none  ▼
//	                       returned ◄── Drop, deadline, peer gone ──────────────── exporting
//	                          ▲                                                       │
//	                          └──────────────────────── failed ───────────────────────┴─ done ─► removed
//
// The buyer's side:
//
//	Confirm ─► reserving ─Reserved─► queued ─free slot─► pulling ─Grant─► importing ─done─► removed
//	                │ refused           ▲   Busy, deadline  │                │ failed
//	                ▼                   └───────────────────┘                ▼
//	             Reject            lease over, Cancel: released           released
//
// The buyer's queue is ordered by the sellers' loads, the greatest first, equal
// ones by arrival. A seller's load is all it has offered and not yet transferred,
// as stated in its last Ask or Confirm.
//
// A buyer that got Busy MaxSkips times stops pulling from that seller and sends
// Starving. The seller promises its next free slot: it sends Ready before it gives
// a slot to another buyer. Unlike the paper's buyer, this one does not wait for the
// Ready (unless Config.WaitForPromise says so): it serves its other entries, and if it
// has no free slot when the Ready arrives, it sends Pass, and the entry comes first
// when a slot is free. Promises end with a deadline.
//
// If links differ, the driver gives the transfer time to each candidate
// (Event.Costs). Then half of the candidates asked are near ones, and a bid counts
// only if no cheaper bidder has as little load, within the request's length.
//
// # Invariants
//
//  1. Slots: exports and slots held for a Ready never exceed MaxConcurrentSends;
//     imports and unanswered Pulls never exceed MaxConcurrentReceives. The two are
//     separate, so that a replica which uses all send slots can still receive.
//  2. Reservations: each Reserve is followed by exactly one of Release, the event
//     ReservationRefused, and the event TransferDone.
//  3. Sales: an offer ends exactly once, by Return or by the event TransferDone.
//  4. A deal is exported at most once, to the one buyer that has reserved KV for it
//     and pulls it, and never after its Return.
//  5. A seller has at most one outstanding ask, so that the next bids include the
//     previous sale.
//  6. No step waits for another replica without a deadline, and a slot is held only
//     for a transfer or for one answer. No step waits for memory: what does not fit
//     is rejected. Together with 1 this excludes cycles of waiting.
//  7. Messages that are late, duplicated, out of order or unknown cost messages;
//     they never hold a slot, a reservation or a request beyond its deadline. A
//     message about a deal that the receiver does not know is answered with Cancel
//     or Drop.
//  8. A migration costs 2d+3 messages if the first bidder accepts and both have
//     slots, independent of the size of fleet and stage. Each Busy adds 2.
//
// # Duties of the driver
//
// The driver answers each Reserve with Reserved or ReservationRefused, and each
// Export and Import with TransferDone or TransferFailed, in bounded time, also
// after Abort, which may come too late. It authenticates Message.From. It calls
// Step with DeadlineReached at Next. Numbers of deals are never reused: after a
// restart Config.FirstDeal is larger than any number before.
//
// Replicas may use different Quoters and Selectors: messages carry facts, and each
// side decides alone.
package bidask
