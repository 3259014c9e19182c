// Package peer carries envelopes between migrators (migrator/api, Peer).
//
// It is a post office: it knows who lives where, keeps one outgoing stream to
// each peer that something is sent to, and tells when a peer that matters has
// gone. It knows no deals, moves or requests, and promises no delivery: the
// state machines behind it are made for messages that are lost, late or
// doubled.
//
// # Invariants
//
//  1. Send never blocks, and nobody is slowed down by a peer that is slow or
//     away: each has a bounded queue of its own, which drops the oldest.
//  2. An envelope is handled only when its stream began with a Hello, it names
//     the sender of that Hello, and it is addressed to this replica.
//     With a trust domain, nothing is believed of a stream whose certificate is
//     not that of the replica's migrator.
//  3. Envelopes of one stream are handled one by one, in the order sent; those
//     that went to two processes have no order.
//  4. Gone is told once for each time that a watched peer falls silent, always
//     by the same goroutine.
//  5. When Run returns, no goroutine of the network is left and nothing is
//     handled any more.
//
// # Liveness
//
// A peer lives while anything comes from it, on a stream of its own or on the
// reply stream of one to it. One that is watched is sent a Beat each Interval,
// and answers each on the reply stream of the stream on which it came, watching
// or not: it needs no stream of its own for that. It is gone
//
//   - after Silence without a word and without another sign of life, in which as
//     many Beats were due here: a process that was held up judges nobody,
//   - when its address refuses two connections running and no stream of its own
//     is open here: the process has ended,
//   - when it comes back as another process (a greater incarnation) while no
//     stream from or to an earlier one is open: it was restarted faster than
//     silence could tell. A stream to it that breaks when it is to be closed, or
//     whose end is not answered within Silence, was not open.
//
// It may come back, which is told as soon as it is heard, and be gone again.
//
// # Upgrades
//
// While one process of a replica takes over from another, two live behind one
// address: new connections reach the later one, open ones stay with the earlier
// until its last request has ended. They are one peer. What either sends is
// handled, and the peer is gone when both are.
//
// The first Hello of the later process calls the own stream away from the
// earlier one: what was sent is left to be read there, nothing of it is sent
// again, and what is queued goes to the later process. When the earlier one
// answers at the address still, its stream is used and left after a second for
// another attempt, for as long as the later one has a stream open here. Each of
// the two beats and is answered over its own connection, so neither loses sight
// of this replica. A later process that never says anything here is met when
// the stream to the earlier one has ended: as one that was restarted.
//
// # Versions
//
// Fields are only ever added. A receiver ignores the fields that it does not
// know, and counts and drops an envelope whose whole body it does not know.
// The Hello tells which versions of the transfer a side speaks; TransferVersions
// tells it to whoever decides how to move.
package peer
