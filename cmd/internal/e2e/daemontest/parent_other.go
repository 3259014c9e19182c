//go:build !linux

package daemontest

import "syscall"

// dieWithParent does nothing on systems without such a kernel feature: a test that dies leaves
// processes behind.
func dieWithParent() *syscall.SysProcAttr { return nil }
