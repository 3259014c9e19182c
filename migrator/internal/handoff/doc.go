// Package handoff is the state machine of one move of a stream between two engines
// that keep their own KV caches (the mode Reprompt of migrator/move): how its KV
// gets to the target. A Machine is pure: Step takes what became of the last action and
// returns the next one; it reads no clock and calls no engine. The driver is
// migrator/frontend.
//
// # The ways
//
// By handoff, the holder's engine is asked for one more token of exactly the stream's
// ids and answers with parameters for the target's engine, which fetches the KV with
// them (dialect.KV). By reprompt, the target's engine computes the KV of
// the ids anew. A handoff that cannot go on becomes a reprompt; it is never the reason
// why a stream does not move, except with Config.KeepsKV: a stream that leaves the replica
// that has just computed its prompt must not have it computed again, and stays instead
// (Fail) until its holder is lost.
//
//	        ┌──────────── while many ids are new: at most MaxRounds ─────────────┐
//	        ▼                                                                    │
//	──► KeepKV ──Kept──► CopyKV ──Copied──► Freeze ──Frozen──► KeepKV ──Kept──► OpenHandoff ──Opened──► Splice
//	        │ Failed         │ Failed          ▲                   │ Failed         │ Failed, too late, holder lost
//	        └───────┬────────┘                 │                   ▼                ▼
//	                └──────► Compute ──────────┘               OpenReprompt ──Opened──► Splice
//
// The rounds before the freeze (CopyKV) copy what there is while the client reads on,
// so that the last one fetches little; they also show, before any client waits, that
// the holder answers and the target can fetch. A handoff begins with one, however short the
// stream is, unless Config.KeepsKV.
//
// # Guards
//
// A target may read blocks of the holder's memory by number and verify nothing, so
// a leg that fetches KV is used only if what it read was certainly the stream's:
//
//  1. The parameters are for exactly the ids that the target is given
//     (dialect.KV.Kept). The holder's one token is discarded.
//  2. The leg's first token comes within Deadline of the request to the holder. A later
//     one is not used: the holder keeps the blocks for a time that its answer does not
//     state.
//  3. The holder has not been lost since: its engine may have restarted, and its memory
//     belong to other requests.
//  4. Parameters are used for one leg.
//  5. The holder answers within a small share of the client's patience, and while the client
//     waits within a few times what it took before the freeze: an engine that is too busy for
//     one token would make the client wait for longer than a reprompt.
package handoff
