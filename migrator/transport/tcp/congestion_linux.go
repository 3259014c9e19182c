package tcp

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// congestion chooses cubic for a socket, where this user may; accepted
// connections inherit it from their listener.
func congestion(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		// Without it blocks still arrive, only more slowly.
		_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic")
	})
}
