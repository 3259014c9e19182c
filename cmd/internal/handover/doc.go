// Package handover lets a new process of a daemon take the listening sockets
// of the running one, so that an upgrade refuses nobody.
//
// It moves sockets and decides who accepts; it knows no requests, and what
// becomes of accepted connections is their process's business. It works on
// Linux; elsewhere a process finds nobody to take over from, and serves
// nobody.
//
// Both processes use the same path of a Unix socket in a directory that only
// their user may enter:
//
//	new: Begin     takes the path's lock, dials, says its version
//	old: Serve     checks the peer's user, settles, sends its sockets (SCM_RIGHTS)
//	new:           builds itself and accepts; from here on both accept
//	new: Finish    says that it accepts
//	old: Serve     stops accepting, says so, returns
//	new: Finish    puts its own Unix socket in the old one's place, unlocks
//	new: Serve     waits for its own successor
//	both: Link     carries what the two tell each other until either ends
//
// # Invariants
//
//  1. From Begin to the end of the old process, somebody holds each socket open:
//     a connection that the kernel has completed is accepted by one of the two.
//  2. Until the old one has read that the new one accepts, whatever happens to
//     the new one leaves the old one as it was.
//  3. One process at a time begins: another waits for it, and then takes over
//     from it.
//  4. Sockets go to a process of the same user, and to nobody else.
package handover
