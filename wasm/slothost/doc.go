// Package slothost runs the policy slots of one host: for each kind that the host
// decides, the native policy, the modules that may decide in its place, and the
// recorded calls that they are tried on.
//
// Apply takes the desired state of a slot (lifecycle.SlotSpec) and Status returns
// the present one; modules that a desired state lacks come by Config.Fetch. Callers get
// policies from Quoter, Selector and so on. Package wasm/promotion decides the phases. A
// call goes from caller.ask to askModule to host.Ask.
//
// # Invariants
//
//  1. Every call is answered once, before Run, after it and whatever the modules do, by
//     the module that the route names or by the native policy. A fault costs the caller
//     only its time, which the kind's limits bound.
//  2. Only a module whose statement Config.Ring signed is ever loaded, and no
//     statement older than the newest one that this host admitted, across restarts,
//     except those of the modules that it ran or was to run last.
//  3. A generation that an operator rolled back never runs again on this host.
//  4. When the call that reports the last tolerated fault returns, no call gets the faulty
//     module any more. A module is closed once, after its last call has returned.
//  5. No call waits until an instance is made, or a module built or freed. It waits for a
//     busy instance only when all are busy, which includes those that run deferred work.
//  6. A call for a partition, a boundary or a plan gets the state that the last answered
//     call for the same scope left.
//  7. A call that timed out while descheduled counts as starved, and not as a fault.
//  8. One module is built at a time.
//
// Calls for bids, outliers and places do not allocate, whether a module or the native
// policy decides, unless they fail.
//
// The host forgets rejected modules when the process ends: after a restart, one that is
// offered again is tried again, in shadow first.
package slothost
