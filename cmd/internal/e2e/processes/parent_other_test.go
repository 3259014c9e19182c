//go:build !linux

package processes

import "syscall"

// dieWithParent does nothing where the kernel has no such thing: a test that
// dies leaves processes behind.
func dieWithParent() *syscall.SysProcAttr { return nil }
