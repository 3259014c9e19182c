// Package policyslots decides what the policy slots of a fleet should run: which
// signed module is proven, which one is on trial and how far it may go, and which
// never run again. It also writes that as the message that hosts get by xDS, reads
// it back, and reads what hosts report of it.
//
// It is pure: it fetches, verifies and runs nothing, and reads no clock. Whether
// a module may be pushed is decided before, by whoever knows its signatures; what
// becomes of it on a host, by that host. The state belongs to the plan object,
// which package store keeps.
//
// Invariants of a Slot, which its changes keep and Validate checks:
//  1. there is at most one proven generation, one before it and one on trial,
//  2. generations ascend: previous, proven, candidate; none is beyond the floor,
//  3. the floor never falls, and a push is above it: a generation that was rolled
//     back, or replaced, is never offered again,
//  4. what is offered was not rolled back.
package policyslots
