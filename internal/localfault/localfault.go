// Package localfault decides whether a failed connection attempt is the fault of this
// process or host.
//
// A process without file descriptors, memory or ports cannot connect to anything, which
// says nothing about the process that it dialled: whoever draws conclusions from a failed
// dial (an engine is away, a peer is gone, a host is ejected) asks [Is] first. Otherwise
// one process that runs out of descriptors gives up all that it is connected to.
package localfault

import (
	"errors"
	"strings"
	"syscall"
)

// faults are the errors of a system call that ran out of something here.
var faults = [...]error{
	syscall.EMFILE,        // descriptors of the process
	syscall.ENFILE,        // descriptors of the host
	syscall.ENOMEM,        // memory
	syscall.ENOBUFS,       // memory of sockets
	syscall.EADDRNOTAVAIL, // ports for outgoing connections
}

// Is reports whether err was caused by this process or host, and not by what it dialled.
func Is(err error) bool {
	for _, f := range faults {
		if errors.Is(err, f) {
			return true
		}
	}
	// The lookup of a name (net.DNSError) keeps only the text of its cause.
	for ; err != nil; err = errors.Unwrap(err) {
		text := err.Error()
		if !strings.HasPrefix(text, "lookup ") {
			continue
		}
		for _, f := range faults {
			if strings.Contains(text, f.Error()) {
				return true
			}
		}
	}
	return false
}
