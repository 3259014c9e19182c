// Package promotion decides which phase each module of one policy slot is in: it
// promotes a new generation through its gates, and takes one back that fails.
//
//	waiting → verifying → compiling → warming → warm → shadow → canary → active → previous
//	                 any of them → rejected, superseded, withdrawn or rolledBack
//
// A Machine is a pure state machine: it loads nothing, calls nothing and reads no
// clock, and one sequence of events gives one sequence of actions. Package
// wasm/slothost feeds it events and executes its actions. Generation 0 stands
// for the native policy, which is always there and serves a slot without modules.
//
// # Promotion
//
// A generation is promoted up to the goal that its offer names and no further;
// each step has a Gate in the Config. In shadow the generation answers recorded
// calls, and its answers are not used. In canary it answers the share of the
// requests that Config.Ladder gives, by a hash of the request's name; a kind that
// decides for many requests at once (partition, refine, guard) answers for one
// scope instead, such as a node group, and then goes on to all. The active
// generation decides again what the canary decided, which shows where the canary
// is worse. Too many worse answers end it as soon as that is certain; until then
// Status.Inconclusive is set and the generation is not promoted. A step of the
// canary that gets too few calls ends after Config.Patience, except the last step.
//
// In shadow, which exists for observation, a generation stays whatever it shows,
// except for a fault: Status.Blocked says what speaks against it. A blocked
// generation whose goal lies beyond shadow is rejected, also when the goal is
// raised later.
//
// A Stable offer skips the gates, but not the building: it is how a host that
// starts gets to what its fleet runs already. An offer that is not Stable is
// rejected in whatever phase it is when its Until passes.
//
// # Taking back
//
// One fault in canary, or Config.Faults within Config.Window while active, reject
// the generation in that same step: the previous one, which is kept loaded for
// this, or the native policy takes over. No other host and no control plane is
// asked. A call that the native policy answered because the operating system did
// not run the module in time (host.Fault.Starved) does not count as a fault, here
// or in a gate.
//
// # Invariants
//
//  1. A route names only generations that are warm and not closed.
//  2. At most three generations are loaded: active, previous, candidate; at most
//     one is being built.
//  3. A generation that was rejected, withdrawn after it ran, or rolled back never
//     runs again while the process lives, among the last 64 of them: to run the
//     module again, sign a new statement, with a new number. Which generations may be
//     offered at all is the caller's to know, see slothost's history.
//  4. What is built is either loaded or closed: there is exactly one Close for every
//     generation that was compiled and is gone.
package promotion
