// Package shm carries blocks between two processes of one machine: the receiver
// maps the source's pool for reading and copies out of it.
//
// A source serves a Unix socket of message packets in a directory that only its
// user may enter; both ends check that the other runs as the same user. The
// receiver presents its ticket (package wire), and is sent the pool's layout
// together with a descriptor that is open for reading only. The connection stays
// for the life of the move:
//
//	check   receiver → source: number u64
//	still   source → receiver: the same number, sent inside the lease
//
// The bytes need no help from the source, so it cannot stop a receiver from
// reading them; what makes Revoke a fence is that each pull ends with a check,
// which a source whose lease is over does not answer. A pull that succeeds has
// read its bytes before, and a pull of a source that died fails.
//
// It is for Linux; elsewhere Probe says so. It does not trust the pool to keep
// its size: a mapping that faults is an error of the pull, not the end of the
// process.
package shm
