//go:build !linux

package etcdtest

import "syscall"

func endWithParent() *syscall.SysProcAttr { return nil }
