// Package planguard checks the partitions and boundaries that policy modules propose,
// and the plans made of them: Planner and Refiner recompute each proposal with the
// host's own cost functions and keep the present state when the proposal is worse;
// Check calls the plan guards.
//
// A bad policy therefore costs a fleet at most a better plan. The package uses no
// number of a proposal: cost, predictions and claims of exactness are replaced by the
// host's. It does not plan, and does not decide whether a change of plan is worth its
// cost, which package policies/adoption does.
//
// Everything is pure except the guards, which are called in order and only about plans
// that keep the invariants. A guard that cannot answer denies, so that the last good
// plan stays.
package planguard
