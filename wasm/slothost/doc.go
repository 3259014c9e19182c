// Package slothost runs the policy slots of one host: for each kind that the host
// decides, the native policy, the modules that may decide in its place, and the
// recorded calls that they are tried on.
//
// Apply takes the desired state of a slot (lifecycle.SlotSpec) and Status returns
// the present one. Callers get policies from Quoter, Selector and so on. How the
// desired state and the modules come to the host is up to package policyhost.
//
// # Invariants
//
//  1. Every call is answered, before Run, after it and whatever the modules do, if
//     necessary by the native policy.
//  2. Only a module whose statement Config.Ring signed is ever loaded, and no
//     statement older than the newest one that this host admitted, across restarts,
//     except those of the modules that it ran or was to run last.
//  3. A generation that an operator rolled back never runs again on this host.
//
// Calls for bids, outliers and places take no lock and do not allocate, whether a
// module or the native policy decides.
package slothost
