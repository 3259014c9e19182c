// Package publish rolls a fleet's views out to its proxies: group after group, in
// steps that each wait until the nodes have acknowledged the previous one. It rolls
// a step back if a node refuses it.
//
// A Publisher receives views by Submit and applies the resulting sets to a Cache.
// Package planrollout decides which group gets which set, and its invariants hold here;
// resources.Groups assigns nodes to groups; a Ledger, the callbacks of the xDS
// server, records what every node was sent and has acknowledged. The Ledger tracks
// nodes and not streams: if a node opens a stream per type, only the waits between
// the steps order them. Package fleet makes the plans, and package cache answers
// the streams.
//
// Invariants, in addition to those of package planrollout:
//  1. the error text of a node is redacted before use: shortened, and without
//     the resources that it quotes,
//  2. observers (resources.ObserverCluster) are sent the same resources, but no
//     rollout waits for them,
//  3. hooks of the Config are called without locks.
package publish
