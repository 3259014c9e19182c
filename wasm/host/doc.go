// Package host runs policies in WebAssembly, so that whatever they are, they
// cost their caller an error and nothing else.
//
// It compiles a module that package meter has rewritten, and makes calls in
// the words of package policies, which package abi puts into frames. It does not
// decide what happens after an error, whose module to trust, or which to use:
// package policy answers by a native policy, and slots choose.
//
// # Invariants
//
//  1. A call ends after the fuel of its kind, and, with a Watch that runs, soon
//     after the kind's wall limit; other goroutines are not held up meanwhile.
//  2. An answer that is returned without an error keeps the rules of its kind.
//  3. An instance that trapped, was cut, or broke a rule is dead: it answers no
//     further call. One that refused a call (Refused) lives on.
//  4. Modules see no file, no network, no true clock and no true randomness.
//     Two instances of a module that get the same calls do the same: results,
//     fuel, and every byte of memory.
//
// # Whose fault it is that time is up
//
// The wall limit is time on the clock, in which a busy machine may not have run the
// call at all. A module cannot wait: no import blocks, so that fuel bounds what it
// does. A call that ends by its wall limit with less than half of its fuel burnt,
// and less than code burns in that time, is therefore marked as Starved: who counts
// faults leaves it out.
//
// An Instance belongs to one goroutine at a time, and takes no lock. Calls of
// the kinds for bids, outliers and places do not allocate unless they fail.
//
// # What the host's own work costs
//
// A call of an import costs HostTicks of the caller's fuel, and one more for
// each HostBytes that the host reads or writes for it: else a module could have
// the host work for nothing. These are part of what fuel means, with
// meter.Version; Version names both.
package host
