//go:build !linux

package kubetest

import "syscall"

func endWithParent() *syscall.SysProcAttr { return nil }
