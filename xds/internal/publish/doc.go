// Package publish rolls a fleet's views out to its proxies: group after group, in three steps per
// group that each wait until the nodes have acknowledged the one before: the endpoints of both plans,
// then the new routes, then only the new endpoints. A plan that a canary or half of a group refuses is
// rolled back at once.
//
// A Publisher receives views by Submit and applies the resulting sets to a Cache. Its rollout decides
// which group gets which set; resources.Groups assigns nodes to groups; a Ledger, the callbacks of the
// xDS server, records what every node was sent, has acknowledged and has refused. The Ledger tracks
// nodes and not streams: if a node opens a stream per type, only the waits between the steps order
// them. Package fleet makes the plans, and package cache answers the streams.
//
// Invariants, for nodes that answer in time:
//  1. only sets that were proven are applied,
//  2. a node gets a route only after it has acknowledged the clusters and endpoints of the route's
//     plan; these stay until the node has acknowledged the routes of another plan,
//  3. a plan goes to a populated group only after the populated groups before it have acknowledged all
//     of it and their watch has ended; the members of the previous plan stay until all groups have the
//     new one, so that a rollback is one step. A newer plan waits for the one in progress, unless that
//     one is stopped or has a stage without a replica that takes requests,
//  4. a plan that a node of the first group, or half of the connected nodes of another group, refused
//     while it was rolled out is reverted in all groups, and its routes are sent to no node again while
//     it is the target,
//  5. a change of only the health and the weights of endpoints is applied to all groups at once, over
//     the plan that each of them has,
//  6. a rollout waits once, for a bounded time, for a node that does not answer,
//  7. the error text of a node is redacted before use: shortened, and without the resources that it
//     quotes,
//  8. observers (resources.ObserverCluster) are sent the same resources, but no rollout waits for them,
//  9. hooks of the Config are called without locks.
//
// A node that refuses a plan alone stops its rollout: its group goes no further and no other group
// begins, until the node has left or accepts it, half of the group refuses it, or a newer target
// replaces the plan. What a node refuses of the plan in force is shown, and the next version takes its
// place: weights and epochs are in the resources. Nodes that do not count (Config.Counts) refuse
// nothing, and are waited for one AckTimeout a phase.
package publish
