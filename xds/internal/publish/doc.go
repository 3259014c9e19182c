// Package publish shows a fleet's views to its proxies: group after group, in
// steps that each wait until the nodes have acknowledged the one before, and
// back again where a node refuses. What to show to whom is decided by package
// rollout, whose invariants are this package's; who is in which group by
// package group. This package brings them the clock, the ledger and the cache.
//
// It is not the planner and not the server: views come from the fleet, streams
// are answered by package cache. What each node has is in the Ledger, which
// belongs to nodes and not to streams: where a host opens a stream per type,
// nothing orders them but the gates here.
//
// Invariants, beside those of package rollout:
//  1. what a node says is used shortened and without the resources that it
//     quotes,
//  2. observers (resources.ObserverCluster) are sent the same and never waited
//     for,
//  3. hooks of the Config are called without locks.
package publish
