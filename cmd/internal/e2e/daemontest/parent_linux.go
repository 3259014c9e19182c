package daemontest

import "syscall"

// dieWithParent ends a child process when the test process ends in any way.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
