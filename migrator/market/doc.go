// Package market takes a replica's part in the market for running requests:
// one goroutine around bidask.Machine.
//
// It brings the machine what happens (messages of peers, answers of the mover,
// the own load, time) and carries out what it says. Each scan it looks at what
// runs here and puts up for sale what package offer says. It moves nothing
// itself: that is the Mover's. It decides nothing of its own either; beside
// that it says, by package board, where requests begin and are rescued, and by
// a policies.Refiner, where the stage's boundary should lie.
//
// # Invariants
//
//  1. Everything that comes in is a non-blocking call; the machine is stepped by
//     Run's goroutine alone, event by event, in the order of arrival.
//  2. An answer of the mover is never lost; messages of peers are, when too many
//     wait: the machine is made for that.
//  3. A request is for sale at most once, only while it runs here, and no more
//     than Offers at a time.
//  4. A request whose transfer has the word is the mover's: nothing but the
//     machine's own deadlines and a lost peer ask it to stop.
//  5. Messages that a replica sends on its own account are bounded: Sample
//     summaries each SummaryEvery, and what the machine promises for an offer.
package market
