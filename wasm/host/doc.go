// Package host runs policies that are WebAssembly modules, so that a faulty or
// hostile module costs its caller an error and nothing else.
//
// Load compiles a module, which package meter has instrumented; Module.Instantiate
// creates an instance; and an instance's methods call it with the types of package
// policies, which package abi encodes into frames. What happens after an error (package
// policy falls back to a native policy), which modules are trusted (package sign) and
// which one decides (policy slots) is decided elsewhere.
//
// # Invariants
//
//  1. A call ends when the fuel of its kind is consumed and, while a Watchdog runs,
//     soon after the kind's wall limit. It does not block other goroutines.
//  2. An answer that is returned without an error satisfies the rules of its kind.
//  3. An instance that trapped, was ended, or broke a rule is dead: all further calls
//     fail. An instance that refused a call (Refused) stays usable.
//  4. Modules have no files, no network, no real clock and no real randomness. Two
//     instances of a module that get the same calls behave the same: same results,
//     same fuel, and the same bytes in memory.
//
// # Timeouts on a busy machine
//
// The wall limit is wall-clock time, during which a busy machine may not have scheduled
// the call at all. A module cannot wait: no import blocks, so its fuel bounds its work.
// A call that reaches its wall limit with less than half of its fuel consumed, and less
// than code consumes in that time, is therefore marked as Starved, and slots do not
// count it as a fault.
//
// An Instance belongs to one goroutine at a time, and takes no lock. Calls of the kinds
// bid-quote, bid-select, outlier and place do not allocate unless they fail.
//
// # The price of the host's work
//
// A call of an import costs HostTicks of the caller's fuel, and one tick for each
// HostBytes that the host reads or writes for it; otherwise a module could make the host
// work for free. These prices are part of the meaning of fuel, like meter.Version;
// Version identifies both.
package host
