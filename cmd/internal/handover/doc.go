// Package handover lets a new process of a daemon take over the listening sockets
// of the running one, so that an upgrade refuses no connection.
//
// It transfers sockets and decides which process accepts; accepted connections stay with
// their process. It works on Linux; elsewhere a process never finds a predecessor or a
// successor.
//
// Both processes use the same path of a Unix socket in a directory that only
// their user may access:
//
//	new: Begin     takes the path's lock, dials, sends its version
//	old: Serve     checks the peer's user, sends its sockets (SCM_RIGHTS)
//	new:           starts and accepts; from here on both accept
//	new: Finish    reports that it accepts
//	old: Serve     stops accepting, reports that, returns
//	new: Finish    replaces the old Unix socket by its own, unlocks
//	new: Serve     waits for its own successor
//	both: Link     carries messages between the two until either ends
//
// # Invariants
//
//  1. From Begin to the end of the old process, one of the two holds each socket
//     open: a connection that the kernel has completed is accepted.
//  2. Until the old process has read that the new one accepts, a failure of the new
//     one leaves the old one unchanged.
//  3. One process at a time begins a takeover: another one waits for it, and then takes
//     over from it.
//  4. A process sends its sockets only to processes of the same user.
package handover
