// Package planrollout decides which set of resources each group of nodes is sent. A new
// plan goes to one group after the other, in three steps per group: the endpoints
// of both plans, then the new routes, then only the new endpoints. A version that a
// canary or half of a group NACKs is withdrawn at once and never sent again.
//
// A Rollout is a state machine: Step takes an event (SetTarget, Observe, NACK or
// Quarantine) with the time, and returns an Output with the sets to apply. It reads
// no clock, starts no goroutine and does no I/O; package publish does all of that.
// The same events in the same order give the same outputs.
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
//  4. a version that a node of the first group, or half of the connected nodes
//     of another group, refused is sent to no other node, with two
//     exceptions: a group with routes to it keeps it until the routes are
//     rolled back, and a resource stays if no other version of it is known,
//  5. a change of only the health and the weights of endpoints is applied to
//     all groups at once, over the plan that each of them has,
//  6. a rollout waits once, for a bounded time, for a node that does not
//     answer.
//
// A node that refuses a version alone stops the rollout that brought it: its group goes
// no further and no other group begins, until the node has left or accepts it, half of
// the group refuses it, or a newer target replaces the plan. Nodes that do not count
// (Observation.Nodes) refuse nothing, and are waited for one AckTimeout a phase.
//
// A version that a whole group has acknowledged is established. A node that refuses
// an established version is fenced like one that does not answer, and its other
// NACKs are ignored until it has caught up.
package planrollout
