// Package executor carries out the moves of one replica: it drives the state
// machine of migrator/transfer with a real engine, real transports, the front
// and the network, and tells the market how each move ended.
//
// It decides nothing: what moves where is the market's, how a move goes on is
// the machine's, and who owns a request is the front's.
//
// # Invariants
//
//  1. The machine belongs to one goroutine. What takes time is done by others,
//     for one move and role in order, one at a time, all joined by Run.
//  2. Nothing that is done between a request's freeze and the front's answer
//     grows with the request's length: ids, sums and hash travel with the rounds.
//  3. The engine is told of blocks (Filled) only after a transport has verified
//     them, and of the last ones only if the ids have the manifest's hash.
//  4. Pulls of all moves together take at least as long as the link would for
//     the true bytes.
//  5. What was frozen is thawed or dropped, and what was reserved released,
//     whatever else fails; if the engine cannot be reached, or refuses for too
//     long, its session ends and does both.
package executor
