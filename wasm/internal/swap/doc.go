// Package swap replaces the module that decides in a policy slot while calls are in
// progress: it executes the actions of a promotion.Machine.
//
// A caller gets the policy for one call by Enter, and gives it back by Leave; what it
// does with the policy in between is its own business. A Loader makes the modules. The
// package knows neither WebAssembly nor what is decided. The native policy is served
// like a module, and cannot be removed.
//
// # Invariants
//
//  1. Enter returns a policy at once: it waits for no lock, and not for a module that
//     is being built or freed.
//  2. A module is closed once, after the Leave of every lease on it.
//  3. When the call that reports the last tolerated fault returns, Enter returns the
//     faulty module no more.
//  4. One module is built at a time, on a goroutine of its own; slots that share
//     Config.Build build one at a time together.
//
// The slot forgets rejected modules when the process ends: after a restart, one that
// is offered again is tried again, in shadow first.
package swap
