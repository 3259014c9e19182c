//go:build !linux

package testkit

import "syscall"

func endWithParent() *syscall.SysProcAttr { return nil }
