// Package rollout decides which resources each group of nodes is shown: a new
// plan goes to one group after the other, in three steps each (the endpoints of
// both plans, the new routes, the new endpoints alone), and what a node refuses
// is taken back at once and never shown again.
//
// It is not the publisher: it reads no clock, starts nothing and talks to
// nobody. Time and facts come in with events, and what is to be done comes out.
// Equal events in equal order give equal results.
//
// Invariants, for nodes that answer in time:
//  1. nothing is shown that was not proven,
//  2. a node has a route only after it has acknowledged the clusters and the
//     endpoints of the plan that the route belongs to; they stay until it has
//     acknowledged the routes of another plan,
//  3. a plan is shown to a populated group only after the populated groups
//     before it have acknowledged all of it, and were watched; the members of
//     the plan before stay until all groups have the new one, so that going
//     back is one step,
//  4. a version that a node refused is shown to nobody again, with two
//     exceptions: a group that has routes to it keeps it until these have gone
//     back, and where nothing else is known of a resource it stays,
//  5. what changes only the health and the weights of endpoints is shown to all
//     groups at once, over the plan that each of them has,
//  6. a node that does not answer is waited for once, for a bounded time.
//
// A version that a group has acknowledged whole is established: who refuses it
// later stands alone, is fenced like one that does not answer, and is no witness
// against anything else until it has caught up.
package rollout
