package testkit

import "syscall"

// endWithParent makes a process end with the thread that starts it.
func endWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
