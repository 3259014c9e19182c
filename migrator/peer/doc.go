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
//  3. Envelopes of one stream are handled one by one, in the order sent.
//  4. Gone is told once for each time that a watched peer falls silent, always
//     by the same goroutine.
//  5. When Run returns, no goroutine of the network is left and nothing is
//     handled any more.
//
// # Liveness
//
// A peer lives while anything comes from it. One that is watched is sent a Beat
// each Interval, and answers with a Beat of its own, watching or not. It is gone
//
//   - after Silence without a word,
//   - when its address refuses two connections running and no stream of its own
//     is open here: the process has ended,
//   - when it comes back as another process (a greater incarnation) while no
//     stream of the earlier one is open here: it was restarted faster than
//     silence could tell.
//
// It may come back and be gone again.
//
// # Versions
//
// Fields are only ever added. A receiver ignores the fields that it does not
// know, and counts and drops an envelope whose whole body it does not know.
// The Hello tells which versions of the transfer a side speaks; TransferVersions
// tells it to whoever decides how to move.
package peer
