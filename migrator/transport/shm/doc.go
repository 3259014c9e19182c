// Package shm carries blocks between two processes of one host: the receiver maps the
// pool of the source read-only and copies blocks out of it.
//
// A source serves a Unix socket (package lease). It sends a receiver that presents
// a valid ticket the layout of its pool and a read-only descriptor of the file behind it.
//
// A receiver can read the whole pool, whatever was announced, also after its grant: it must be
// trusted with it. It runs as the same user on the same host, which the kernel vouches for.
//
// Invariant: a pull that succeeds has read its bytes while the grant was in force. The
// source cannot stop a receiver from reading a mapping, so every pull ends with a check
// that the source answers inside the lease only. That makes Revoke a fence, and fails the
// pull of a source that died.
//
// The pool may lose its size while it is mapped: an access that faults is an error of the
// pull, not the end of the process. The transport requires Linux; elsewhere Probe fails.
package shm
