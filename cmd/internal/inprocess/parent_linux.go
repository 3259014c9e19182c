package inprocess

import "syscall"

// killWithParent ends a child process when this one dies, however it dies.
func killWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
