// Package planrollout decides which set of resources each group of nodes is sent. A new
// plan goes to one group after the other, in three steps per group: the endpoints
// of both plans, then the new routes, then only the new endpoints. A plan that a
// canary or half of a group NACKs is rolled back at once.
//
// A Rollout is a state machine: Step takes an event (SetTarget, Observe or NACK) with the
// time, and returns an Output with the sets to apply. It reads no clock, starts no
// goroutine and does no I/O; package publish does all of that. The same events in the
// same order give the same outputs.
//
// Invariants, for nodes that answer in time:
//  1. only sets that were proven are applied,
//  2. a node gets a route only after it has acknowledged the clusters and
//     endpoints of the route's plan; these stay until the node has
//     acknowledged the routes of another plan,
//  3. a plan goes to a populated group only after the populated groups before
//     it have acknowledged all of it and their watch has ended; the members of
//     the previous plan stay until all groups have the new one, so that a
//     rollback is one step,
//  4. a plan that a node of the first group, or half of the connected nodes of another
//     group, refused while it was rolled out is reverted in all groups, and its routes are
//     sent to no node again while it is the target,
//  5. a change of only the health and the weights of endpoints is applied to
//     all groups at once, over the plan that each of them has,
//  6. a rollout waits once, for a bounded time, for a node that does not
//     answer.
//
// A node that refuses a plan alone stops its rollout: its group goes no further and no other
// group begins, until the node has left or accepts it, half of the group refuses it, or a
// newer target replaces the plan. What a node refuses of the plan in force is shown, and the
// next version takes its place: weights and epochs are in the resources. Nodes that do not
// count (Observation.Nodes) refuse nothing, and are waited for one AckTimeout a phase.
package planrollout
