package inprocess

import "syscall"

// dieWithParent ends a child process when this one dies, however it dies.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
