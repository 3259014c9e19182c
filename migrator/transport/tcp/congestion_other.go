//go:build !linux

package tcp

import "syscall"

// congestion leaves the system's choice.
func congestion(_, _ string, _ syscall.RawConn) error { return nil }
