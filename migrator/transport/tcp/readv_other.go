//go:build !linux

package tcp

import "net"

// newReadv returns nil: this operating system offers no readv here.
func newReadv(*net.TCPConn) func([][]byte) (int, error) { return nil }
