package envoytest

import (
	"os/exec"
	"syscall"
)

// dieWithParent has the kernel kill the command when the test dies, so that a
// crashed test leaves nothing behind.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
