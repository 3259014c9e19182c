// Package market takes a replica's part in the market for running requests: one
// goroutine around bidask.Trader.
//
// A Market feeds the trader with events (messages of peers, results of the migration
// executor, time) and scans (the replica's load and the requests that run there), and
// executes its actions. It migrates nothing itself (the Executor does) and has no rules of
// its own. In addition it places new requests and rescued streams with place.Peers,
// and proposes with a policies.Refiner where the stage's boundary should lie.
//
// # Invariants
//
//  1. Every input is a non-blocking call; only Run's goroutine steps the trader, event by
//     event, in the order of arrival.
//  2. A result of the Executor is never lost. Messages of peers are dropped when too many
//     wait: the machine tolerates that.
//  3. The Executor handles a request whose transfer runs: only the machine's own deadlines
//     and a lost peer ask it to stop.
//  4. Unsolicited messages are bounded: summaries to a sample of peers each SummaryInterval, and what
//     the machine guarantees for an offer.
package market
