// Package policydev is what the commands "cascade policy" do for the author of a
// policy in WebAssembly: begin one, build it, look at it, test it, measure it,
// and set its decisions beside those of another.
//
// Everything here works on frames (package abi): random ones, golden vectors, or
// ones that a host recorded. Who answers them is a Decider: a module in the host,
// or one of our own policies, natively. The package runs no fleet, keeps no keys
// and prints nothing.
//
// The invariant: nothing here depends on the clock but durations that are called
// so; the same module and seed give the same report everywhere.
package policydev
