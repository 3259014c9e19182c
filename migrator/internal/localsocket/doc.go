// Package localsocket connects the two processes of a pull on one host: a Unix socket of
// message packets, in a directory that only its user may enter.
//
// A source listens with Listen and Server.Serve, a receiver connects with Open. Both ends
// check that the other runs as the same user. The receiver presents its ticket (package
// handshake) and is sent the layout of the pool, together with what its transport needs
// to reach the memory: some bytes, and at most one descriptor. The connection stays open
// for the life of the pull:
//
//	check   receiver → source: number u64
//	answer  source → receiver: the same number, sent inside the lease
//
// CheckDir and CheckPeer are for every other socket of the migrator's user, too: those of its
// engine.
//
// Invariant: Session.Check succeeds only if the lease was in force at a moment after the
// call. A receiver reads the bytes of the pool without the source, which therefore cannot
// stop it; each pull ends with a check, which a source does not answer once the lease is
// over. That makes the Revoke of a transport a fence.
//
// The package carries no blocks. It requires Linux.
package localsocket
