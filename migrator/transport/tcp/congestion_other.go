//go:build !linux

package tcp

import "syscall"

// setCongestionControl keeps the default of the operating system.
func setCongestionControl(_, _ string, _ syscall.RawConn) error { return nil }
