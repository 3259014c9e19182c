//go:build !linux

package inprocess

import "syscall"

// dieWithParent has no equivalent here: a child outlives a killed parent.
func dieWithParent() *syscall.SysProcAttr { return nil }
