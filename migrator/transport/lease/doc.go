// Package lease grants a receiver the right to pull blocks, and ends it: what every transport does in
// the same way at both ends of a pull. It has the offers of a source and their tickets, the first two
// messages of a connection, the accept loop of a source that serves a socket, the transports between
// processes of one host but for their copies, and the receiver's Puller.
//
// A transport embeds a Source, which exports grants and accepts receivers. It opens a pull with Open,
// and returns a Puller that runs the transport's own Steps: copy the blocks of a plan, interrupt that
// copy, release what was acquired.
//
// Invariants:
//
//  1. Steps.Copy runs at most once at a time, never after Steps.Release, and only for a
//     plan that is valid for both pools.
//  2. After one error the Puller copies nothing more: every later Pull fails with it.
//  3. Close returns after the last Copy has returned and everything is released.
//
// # Tickets
//
// A source issues a ticket for each grant that it exports, and trades the ticket that a
// receiver presents for a Lease. It reads the memory, or answers for it, between Enter and
// Leave of the lease.
//
//  1. A ticket is redeemed at most once, by the receiver that it was issued for, before
//     its deadline.
//  2. Between Enter and Leave a lease is in force: what is read of the memory in between
//     is read before Revoke returns.
//  3. A lease is for the blocks that were announced for its migration (Source.Announce);
//     transports that send blocks themselves check it (Lease.CheckAnnounced).
//
// # Sockets on one host
//
// A Local serves a Unix socket of message packets, to which receivers of the same user connect with
// OpenSession. The receiver presents its ticket and is sent the
// layout of the pool, together with what its transport needs to reach the memory: some bytes, and at
// most one descriptor. The connection stays open for the life of the pull:
//
//	check   receiver → source: number u64
//	answer  source → receiver: the same number, sent inside the lease
//
// SocketSession.Check succeeds only if the lease was in force at a moment after the call. A
// receiver reads the bytes of the pool without the source, which therefore cannot stop it; each
// pull ends with a check, which a source does not answer once the lease is over. That makes the
// Revoke of a transport a fence.
package lease
