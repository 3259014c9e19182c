// Package policyslots holds the desired state of a fleet's policy slots: which signed
// module is stable, which one is the candidate and how far it may go, and which
// generations never run again.
//
// A Slot is a value in the plan object, which package store keeps. Its methods return
// the slot as changed by an operator (Push, SetGoal, Rollback) or by the reports of
// hosts (Judge, Promote, Withdraw, Revoke). Encode and Decode convert the message that
// is sent to hosts, EncodeStatus and DecodeStatuses the one that hosts report.
//
// The package is pure: it fetches, verifies and runs nothing, and reads no clock. The
// caller of Push has verified the module's signatures. Each host decides by itself
// which phase a module has reached there.
//
// Invariants of a Slot, which its changes keep and Validate checks:
//  1. there is at most one stable generation, one previous one and one candidate,
//  2. generations ascend: previous, stable, candidate; none is above the floor,
//  3. the floor never falls, and a push must be above it: a generation that was rolled
//     back, or replaced, is never offered again,
//  4. no generation that is offered was rolled back.
package policyslots
