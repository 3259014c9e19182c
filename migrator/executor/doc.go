// Package executor executes the migrations of one replica. It drives the state machine
// of migrator/transfer with a real engine, real transports, the replica's front end and
// the peer network, and reports the result of each migration to the market.
//
// It makes no decisions: the market decides what migrates where, the state machine how
// a migration proceeds, and the front end which replica holds a request.
//
// # Invariants
//
//  1. One goroutine owns the state machine. Blocking work runs on other goroutines: for
//     one migration and role in order, one job at a time; Run waits for all of them.
//  2. The work between a request's freeze and the front end's answer does not grow with
//     the request's length: ids, checksums and hash are sent with the rounds.
//  3. MarkFilled is called only for blocks that a transport has verified, and for the
//     last ones only if the ids have the manifest's hash.
//  4. The pulls of all migrations together take at least as long as the configured link
//     would need for the real engine's bytes.
//  5. A frozen request is thawed or dropped and a reservation released, whatever else
//     fails. If the engine cannot be reached, or refuses for too long, its session ends,
//     which does both.
package executor
