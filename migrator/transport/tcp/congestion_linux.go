package tcp

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// setCongestionControl selects cubic for a socket if this user may; accepted
// connections inherit it from their listener.
func setCongestionControl(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		// An error only makes transfers slower.
		_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic")
	})
}
