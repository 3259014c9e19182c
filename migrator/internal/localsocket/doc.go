// Package localsocket is how two processes of one machine begin and end a pull: a Unix
// socket of message packets, in a directory that only its user may enter.
//
// A source serves the socket; both ends check that the other runs as the same
// user. The receiver presents its ticket (package wire), and is sent the pool's
// layout together with what its transport needs to reach the memory: some bytes,
// and at most one descriptor. The connection stays for the life of the move:
//
//	check   receiver → source: number u64
//	still   source → receiver: the same number, sent inside the lease
//
// The bytes of the pool need no help from the source, so it cannot stop a receiver
// from reading them; what makes a transport's Revoke a fence is that each pull
// ends with a check, which a source whose lease is over does not answer.
//
// It moves no blocks, and is for Linux.
package localsocket
