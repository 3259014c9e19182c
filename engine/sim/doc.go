// Package sim runs a fleet of replicas in virtual time: the emulator's scheduler on every replica, a
// profile's prices for its iterations, and the production source of every policy that is pure.
//
// New checks a Config, Run simulates until the last request has ended and returns what package replay
// returns for a real run, so that package report compares both. Simulated are the engines' batches,
// queues, KV blocks and prefix caches, the proxies' picks with what they can know (the requests that
// they sent themselves, loads as old as the reports), central schedulers that move running requests,
// failures and drains; of Cascade the proxies' weighted picks, a load view and a trader per replica with
// summaries and messages between them, live transfers over links that they share, and the control plane.
// Under Cascade a replica fails with its front end, whose clients see a cut; other front ends resume what
// they had there, and proxies send a request again that finds no listener.
//
// Prompts that share prefixes, by the ids of the trace, are kept together as in production: front ends
// know exactly what their own engine has cached, of peers what the last summary said at every 512 tokens,
// and place by it; and a prefix is copied from its holder where that is faster than to compute it. They know
// the tokens of every prompt, except in policies that say so, where they know what they have served. Summaries
// name no prefixes that are not there, which production's sketches do at times. Without prefix ids nothing
// of it happens.
//
// Not simulated are networks and HTTP: a request reaches its replica when it is due, plans and weights
// take effect at once, reports to the control plane are never late, and a transfer never fails but for
// what happens to its request, replicas and blocks.
//
// Invariants: one goroutine, no clock, no I/O but the Source; equal Configs give equal Results, byte for
// byte; memory grows with the requests in flight and the size of the fleet, not with the trace.
package sim
