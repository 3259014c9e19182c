package processes

import "syscall"

// dieWithParent ends a process when the test dies, however it dies.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
