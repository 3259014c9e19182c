package inprocess

import "syscall"

// killWithParent ends a child process when this one ends in any way.
func killWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
