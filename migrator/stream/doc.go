// Package stream is the front of a replica: the HTTP server that stands
// between the proxies and one inference engine and owns each client's stream
// for the stream's life.
//
// It relays /v1/completions and /v1/chat/completions token by token, counts
// every token for the replica's load and flow, and keeps each stream's token
// ids, so that the stream can go on at another engine. It is not a proxy for a
// fleet (it has one engine and, before a request starts, at most one forward
// to a peer) and it decides nothing: Placer says where a request starts, and
// whoever holds a Stream decides whether it moves.
//
// # Invariants
//
//  1. What the client reads equals, byte for byte, what the engine would have
//     answered directly, up to id and created.
//  2. A client gets each token once and in order, whatever legs they came from.
//     After a splice, each token was generated from exactly the ids before it.
//  3. A request is counted at the one replica whose engine runs it.
//  4. Nothing that a client sends names another engine's memory:
//     kv_transfer_params and x-cascade-* never reach an engine from outside.
//  5. An answer that is cut ends with an error event and without [DONE]; one
//     that has not begun is refused in a way that proxies retry elsewhere.
//
// # Legs
//
// A Leg is one engine's generation. A stream reads from one leg at a time, on
// its handler's goroutine. To move it, Cut freezes what the client has read;
// the present leg runs on, its tokens are held back. Splice makes another leg
// take over from its first token on; Abort, or anything that goes wrong,
// delivers what was held back, and the stream goes on as if nothing had been.
// A stream that ends while it is cut ends where it was.
package stream
