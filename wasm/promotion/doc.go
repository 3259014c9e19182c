// Package promotion decides the life of the modules in one place where a policy
// decides: which generation is built, tried, trusted, taken back.
//
//	offered → verified → compiled → warm → shadow → canary → active → previous
//	                 any of them → rejected, superseded or withdrawn
//
// A Machine is a pure state machine: it loads nothing, calls nothing, reads no
// clock, and one sequence of events gives one sequence of actions. Package
// wasm/internal/swap drives it. Generation 0 stands for the native policy, which is
// always there; a slot without modules is served by it.
//
// # The way up
//
// A generation climbs by itself, to the goal that its offer names and no
// further; each step has a gate of the Config. In shadow it answers recorded
// frames and nobody hears it. In canary it answers the share of the requests
// that Config.Ladder gives, by a hash of the request's name; a kind that decides
// for many requests at once (partition, refine, guard) answers for one scope
// instead, a node group say, and goes on to all. What it decides there is decided
// again by the active generation, and counts where it is worse. Too many worse answers
// end it as soon as that is sure; while it is not, Life.Doubt says so and nothing goes
// on. A step of the canary whose calls do not come is left after Config.Patience; the
// last one is not.
//
// In shadow, which is there to be watched, a generation stays however it looks, but
// for a fault: Life.Held says what speaks against it. One that was to go further ends
// there, and whoever asks for more of one that is held has it ended.
//
// An offer that is Proven skips the gates, not the building: it is how a host that
// starts comes to what its fleet runs already. One that is not is rejected where it
// is when its Until comes.
//
// # The way down
//
// One fault in canary, or Config.Faults within Config.Window while active, and
// the generation is rejected in that same step: the previous one, kept loaded
// for that, or the native policy takes over. No one has to be asked. A call that the
// native policy answered because the machine did not run the module in time
// (host.Fault.Starved) is no fault, here or in a gate.
//
// # Invariants
//
//  1. A route names generations only that are warm and not closed.
//  2. At most three generations are loaded: active, previous, candidate; at most
//     one is being built.
//  3. A generation that was rejected, withdrawn after it ran, or rolled back never
//     runs again: to run the module again is a new statement, with a new number.
//  4. The floor never falls: an offer below the highest one seen is refused, unless
//     the host is to go back to it.
//  5. What is built is either loaded or closed: exactly one Close for every
//     generation that was compiled and is gone.
package promotion
