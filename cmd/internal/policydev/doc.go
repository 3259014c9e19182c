// Package policydev implements the commands "cascade policy" for authors of
// WebAssembly policies: it creates, builds, inspects, tests and measures a
// policy, and compares its decisions with those of another.
//
// All of it works on frames (package abi): random ones, golden vectors, or
// calls that a host recorded. A Decider answers them: a module in the host, or
// a built-in policy, natively. The package runs no fleet, stores no keys and
// prints nothing.
//
// Invariant: apart from measured durations nothing depends on the clock; the
// same module and seed give the same report everywhere.
package policydev
