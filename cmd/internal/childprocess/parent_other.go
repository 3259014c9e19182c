//go:build !linux

package childprocess

import "syscall"

// DieWithParent returns empty attributes: without Linux's parent-death signal, a child outlives a
// killed parent.
func DieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
