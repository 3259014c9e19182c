// Package policyslots holds the desired state of a fleet's policy slots: which
// signed module is stable, which one is on trial and how far it may go, and which
// generations never run again.
//
// A Slot is a value in the plan object, which package store keeps. Its methods
// return the changed slot for what operators ask (Push, SetGoal, Rollback) and for
// what hosts report (Judge, Promote, Withdraw, Revoke). Encode and Decode convert
// what hosts are sent, EncodeStatus and DecodeStatuses what they report.
//
// The package is pure: it fetches, verifies and runs nothing, and reads no clock.
// The caller of Push has verified the module's signatures; each host decides by
// itself in which phase a module is there.
//
// Invariants of a Slot, which its changes keep and Validate checks:
//  1. there is at most one stable generation, one previous one and one on trial,
//  2. generations ascend: previous, stable, candidate; none is above the floor,
//  3. the floor never falls, and a push is above it: a generation that was rolled
//     back, or replaced, is never offered again,
//  4. what is offered was not rolled back.
package policyslots
