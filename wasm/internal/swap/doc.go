// Package swap puts the modules of a slot in force and takes them back while
// calls are being made: it does what a slot.Machine decides.
//
// It knows neither WebAssembly nor what is decided: a Loader makes modules, and a
// call is whatever the caller does with the policy of its Lease between Enter and
// Leave. The native policy is one like the others, and cannot be taken away.
//
// # Invariants
//
//  1. Every Enter gives a policy, at once: it waits for no lock, and for nothing
//     that is being built or freed.
//  2. A module is closed once, after the Leave of every lease on it.
//  3. When the call that reports the last tolerated fault returns, no Enter gives
//     the faulty module any more.
//  4. One module is built at a time, apart from the calls; slots that share
//     Config.Build build one at a time together.
//
// Verdicts live as long as the Slot: after a restart a rejected module that is
// offered again is tried again, in shadow first.
package swap
