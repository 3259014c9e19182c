// Package peer carries envelopes between migrators (migrator/api, Peer) and detects which
// peers have gone.
//
// A Network keeps one outgoing stream to each peer to which something is sent, and knows
// the peers' addresses. It knows nothing of deals, migrations or requests, and does not
// guarantee delivery: the state machines above it tolerate messages that are lost, late or
// duplicated.
//
// # Invariants
//
//  1. Send never blocks, and a peer that is slow or down slows nothing else: each peer has a
//     bounded queue of its own, which drops the oldest envelopes.
//  2. An envelope is handled only if its stream began with a Hello, and if it names the
//     sender of that Hello and this replica as its receiver. With a trust domain, a stream
//     without the certificate of its replica's migrator is rejected.
//  3. The envelopes of one stream are handled one by one, in the order sent; those that went
//     to two processes have no order.
//  4. PeerGone is called once for each time that a watched peer falls silent, always on the
//     same goroutine.
//  5. When Run returns, no goroutine of the network is left and no envelope is handled any
//     more.
//
// # Liveness
//
// A peer is alive while anything arrives from it, on a stream that it opened or on the reply
// stream of one to it. A watched peer is sent a Heartbeat each HeartbeatInterval, and replies
// on the reply stream of the stream on which it came, whether it watches this replica or
// not: it needs no stream of its own for that. It is gone
//
//   - after PeerTimeout without an envelope and without other evidence (Config.Alive), if as
//     many heartbeat intervals have passed in this process: a process that was suspended
//     reports no peer gone,
//   - when its address refuses two consecutive connections and it has no stream open here:
//     the process has ended,
//   - when it comes back as another process (a greater incarnation) while no stream from or
//     to an earlier one is open: it was restarted within PeerTimeout. A stream to it that
//     breaks when it is to be closed, or whose end is not confirmed within PeerTimeout, does
//     not count as open.
//
// It may come back, which is reported as soon as anything arrives, and be gone again.
//
// # Upgrades
//
// While one process of a replica takes over from another, both share one address: new
// connections reach the later process, open ones stay with the earlier one until its last
// request has ended. They are one peer. Envelopes of both are handled, and the peer is gone
// when both are.
//
// The first Hello of the later process makes the own stream switch to it: what was sent
// stays with the earlier process and is not sent again; what is queued goes to the later
// one. If the earlier process still answers at the address, its stream is used and another
// attempt is made every second, for as long as the later process has a stream open here.
// Each of the two sends Heartbeats and gets replies over its own connection, so both keep
// seeing this replica alive. A later process that never sends anything here is detected, as
// a restart, when the stream to the earlier one has ended.
//
// # Versions
//
// Fields are only ever added. A receiver ignores unknown fields, and drops an envelope
// whose whole body is unknown. The Hello contains the supported versions of the transfer
// protocol.
package peer
