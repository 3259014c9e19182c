// Package frontend is the front of a replica: the HTTP server that stands
// between the proxies and one inference engine and owns each client's stream
// for the stream's life, wherever its tokens come from.
//
// It relays /v1/completions and /v1/chat/completions token by token, counts
// every token for the replica's load and flow, and keeps each stream's token
// ids, so that the stream can go on at another engine. It decides nothing:
// Placer says where a request starts, who calls Move decides that a stream
// moves, and Rescuer where it goes on when its engine is lost.
//
// # Invariants
//
//  1. What the client reads equals, byte for byte, what the engine would have
//     answered directly, up to id and created.
//  2. A client gets each token once and in order, whatever legs they came from.
//     After a splice, each token was generated from exactly the ids before it.
//  3. A request is counted at the one replica whose engine runs it; it arrives
//     once and ends once, however often it moves.
//  4. Nothing that a client sends names another engine's memory or another
//     request: kv_transfer_params and x-cascade-* never reach an engine from
//     outside.
//  5. An answer that is cut ends with an error event and without [DONE]; one
//     that has not begun is refused in a way that proxies retry elsewhere.
//  6. A stream has one holder in one epoch. Both change here only, by
//     compare-and-swap, and an epoch's number is never used for two attempts.
//
// # Legs
//
// A Leg is one engine's generation, named "<stream id>#<epoch>" at its engine.
// A stream reads from one leg at a time, on its handler's goroutine, the pump.
// Legs at other replicas come through those replicas' PeerHandler, never
// through a third one.
//
// # Moves
//
// Move claims a stream in the holder and epoch that it names; then it is
// pending, and all other claims are stale. A live move waits until the client
// has exactly the ids that the target's engine has been given, a move by
// re-prompting until the client's text ends with a character. Then the stream
// is frozen: what its leg still brings is held back. The target's leg is
// opened, and its first token commits: the stream goes on with it (epoch+1),
// what was held is dropped and the old leg is closed. On any failure before
// that token the stream goes on with the old leg (epoch+2), as if nothing had
// been. A stream that ends while it moves ends where it was.
//
// # Rescues
//
// A leg that ends without [DONE], pauses too long, reports that its engine
// died, or runs at a replica that is said to be gone, is lost. If the stream
// may move, the pump looks for another replica, three times at most, and goes
// on from the client's ids by re-prompting; the client sees a pause. Where the
// client's text ended inside a character and the client sees no ids, the tokens
// of that character are generated anew.
package frontend
