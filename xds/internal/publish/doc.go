// Package publish rolls a fleet's views out to its proxies: group after group,
// in steps that each wait until the nodes have acknowledged the one before, and
// back again where a node refuses one.
//
// A Publisher takes views by Submit and applies the resulting sets to a Cache.
// Package rollout decides which group gets which set, and its invariants hold
// here; package nodegroup says which node is in which group; a Ledger, the
// callbacks of the xDS server, records what every node was sent and has
// acknowledged. The Ledger belongs to nodes and not to streams: where a host
// opens a stream per type, only the waits between the steps order them.
// Planning is done by package fleet, and streams are answered by package cache.
//
// Invariants, beside those of package rollout:
//  1. the error text of a node is used redacted: shortened, and without the
//     resources that it quotes,
//  2. observers (resources.ObserverCluster) are sent the same and never waited
//     for,
//  3. hooks of the Config are called without locks.
package publish
