// Package frontend is the HTTP server of a replica's migrator: it stands between
// the proxies and one inference engine and owns each client's stream for the
// stream's life, whichever replica generates its tokens.
//
// It relays /v1/completions and /v1/chat/completions token by token, counts
// every token for the replica's load and flow, and keeps each stream's token
// ids so that the stream can go on at another engine. It makes no placement
// decisions: Placer chooses where a request starts, the caller of Migrate where a
// stream goes, and Rescuer where a stream goes on whose engine is lost.
//
// # Invariants
//
//  1. What the client reads equals, byte for byte, what the engine would have
//     answered directly, up to id and created.
//  2. A client gets each token once and in order, whatever legs they came from.
//     After a splice, each token was generated from exactly the ids before it.
//  3. A request is counted at the one replica whose engine runs it; it arrives
//     once and ends once, however often it migrates.
//  4. Nothing that a client sends names another engine's memory or another
//     request: kv_transfer_params, request ids and header fields that are not
//     listed never reach an engine from outside, because every request passes one gate, which lists the methods
//     and paths that are served and reads all bodies.
//  5. An answer that is cut ends with an error event and without [DONE]; one
//     that has not begun is refused in a way that proxies retry elsewhere. A
//     request that no handler has answered is never taken for a success
//     (withAnswer).
//  6. A stream has one holder in one epoch. Both change here only, by
//     compare-and-swap, and no epoch is used for two attempts.
//
// # The engine
//
// Whether requests are accepted, checks are due and requests go elsewhere is decided by
// migrator/internal/enginestate, a pure state machine; engineWatch is its driver. What is known of the
// engine besides (engineFacts) comes from migrator/engineinfo.
//
// # Legs
//
// A leg is one engine's generation, which its engine knows as "<stream id>#<epoch>".
// A stream reads from one leg at a time, on the goroutine of its handler, the pump. When its client
// lags behind, a goroutine reads the leg ahead at the engine's pace (readAhead), so that what is counted
// of an engine ends when the engine has ended it.
// Legs at other replicas come through those replicas' PeerHandler, never through a
// third replica.
//
// # Sessions
//
// What a stream does next is decided by migrator/internal/session, a pure state
// machine; its package comment specifies migrations and rescues, that of
// migrator/internal/handoff how KV gets to a target that has no reservation. Stream is the
// driver: it owns the pump, the locks and the legs, and turns what happens into
// events. Migrate drives one migration: it claims the stream, warms the target up,
// freezes the stream, opens the target's leg and splices it in. A leg is lost when
// it ends without [DONE], reports that its engine failed or has aborted the request, or runs at a replica that is
// gone or whose engine makes no progress; the pump then rescues the stream, and the
// client sees a pause. One leg's own pause counts only while the engine has room (see
// HangTimeout), because a full engine preempts requests. A stream that no other engine can
// continue waits for a hung one for HangTimeout, and then ends with an error. If the
// client's text ended inside a character and the client sees no ids, the tokens of that
// character are generated again.
package frontend
