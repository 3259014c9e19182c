// Package slothost runs the policy slots of one host: for each kind that the host
// decides, the native policy, the modules that may decide in its place, and the
// recorded calls that they are tried on.
//
// Apply takes the desired state of a slot (lifecycle.SlotSpec) and Status returns
// the present one; modules that a desired state lacks come by Config.Fetch. Callers get
// policies from Quoter, Selector and so on. A call goes from caller.ask to askModule to
// host.Ask.
//
// # Promotion
//
//	waiting → verifying → compiling → warming → warm → shadow → canary → active → previous
//	                 any of them → rejected, superseded, withdrawn or rolledBack
//
// A slot's machine holds what the slot should run and decides the phases. It is pure: one
// sequence of events gives one sequence of states. The slot builds, tries and frees modules
// as the state requires. Generation 0 stands for the native policy, which serves a slot
// without modules.
//
// A generation is promoted up to the goal that its candidate names and no further; each
// step has a Gate. In shadow the generation answers recorded calls, and its answers are
// not used. In canary it answers the share of the requests that Gates.Ladder gives, by a
// hash of the request's name. A kind that decides for many requests at once (partition,
// refine, guard) answers for one scope instead, such as a model, and then goes on to all.
// The active generation decides again what the canary decided, which shows where the
// canary is worse. Too many worse answers end it as soon as that is certain; until then
// Status.Inconclusive is set and the generation is not promoted.
//
// In shadow, which exists for observation, a generation stays whatever it shows, except
// for a fault: Status.Blocked says what speaks against it. A blocked generation whose goal
// lies beyond shadow is rejected, also when the goal is raised later. A stable candidate
// skips the gates, but not the building: it is how a host that starts gets to what its
// fleet runs already.
//
// One fault in canary, or Gates.Faults within Gates.Window while active, reject the
// generation in that same call: the previous one, which is kept loaded for this, or the
// native policy takes over. No other host and no control plane is asked.
//
// # Invariants
//
//  1. Every call is answered once, before Run, after it and whatever the modules do, by
//     the module that the route names or by the native policy. A fault costs the caller
//     only its time, which the kind's limits bound.
//  2. Only a module whose statement Config.Ring signed is ever loaded, and no
//     statement older than the newest one that this host admitted, across restarts,
//     except those of the modules that it ran or was to run last.
//  3. A generation that an operator rolled back never runs again on this host. One that
//     was rejected, or withdrawn after it ran, does not while the process lives, among
//     the last 64 of them: sign a new statement, with a higher generation.
//  4. When the call that reports the last tolerated fault returns, no call gets the faulty
//     module any more. A module is closed once, after its last call has returned.
//  5. No call waits until a module is built or freed, or until an instance is made in the
//     place of one that died. It waits for a busy instance only when all are busy, which
//     includes those that run deferred work and worn ones, which are being replaced.
//  6. A call for a partition, a boundary or a plan gets the state that the last answered
//     call for the same scope left.
//  7. A call that timed out while descheduled counts as starved, and not as a fault.
//  8. One module is built at a time. At most three are loaded in a slot: active, previous
//     and candidate.
//  9. No call, status or rollback waits for the disk, nor does the end of Run for long; only
//     the spec itself does.
//
// Calls for bids, outliers and places do not allocate, whether a module or the native
// policy decides, unless they fail.
package slothost
