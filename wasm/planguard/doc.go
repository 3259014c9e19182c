// Package planguard stands between what an optimiser proposes and what is done: the
// host works the proposal out anew, with the cost functions of its own, and keeps
// what it has where the proposal does not hold.
//
// A bad policy can then cost a fleet a better plan, and nothing else. The package
// trusts no number that a proposal brings along: cost, predictions and claims of
// exactness are replaced by the host's. It plans nothing itself, and does not
// decide whether a change of plan is worth its trouble, which is policies/adoption.
//
// Everything here is pure but for the guards, which are asked in order and only
// about plans that keep the invariants. A guard that cannot answer denies: the
// last good plan stays.
package planguard
