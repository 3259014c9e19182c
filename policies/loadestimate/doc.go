// Package loadestimate estimates how busy a replica is from two sources: the
// reports of its migrator, which counts tokens and may be wrong or lie, and the
// reports of the proxies in front of it, which count their requests in progress.
//
// An Estimator is fed with events and returns an Estimate after each. Everything
// here is pure: time comes with every event and may be virtual. A simulator keeps an
// Estimator per replica, as the control plane does, and steps it with a Claim for every
// report and with a Tick before it computes weights. Package lrs serves the proxies'
// reports, and package weights turns loads into EDS weights.
//
// Invariants:
//  1. a migrator's report counts only while it is fresh and not contradicted,
//  2. the estimate for a replica without such a report comes from the proxies or is
//     Unknown; it is never an extreme value, and it does not fall because answers stop,
//  3. the same events at the same times give the same estimates.
package loadestimate
