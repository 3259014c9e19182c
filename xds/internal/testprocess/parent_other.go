//go:build !linux

package testprocess

import "syscall"

func endWithParent() *syscall.SysProcAttr { return nil }
