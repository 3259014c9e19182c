//go:build !linux

package tcp

import "net"

// scatter has no readv to offer on this system.
func scatter(*net.TCPConn) func([][]byte) (int, error) { return nil }
