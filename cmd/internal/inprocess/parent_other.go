//go:build !linux

package inprocess

import "syscall"

// killWithParent has no equivalent here: a child outlives a killed parent.
func killWithParent() *syscall.SysProcAttr { return nil }
