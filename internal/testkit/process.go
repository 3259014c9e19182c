package testkit

import (
	"os/exec"
	"runtime"
	"syscall"
)

// Process is another program, such as Envoy or etcd, that runs for tests. On Linux it ends with the test.
type Process struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// StartProcess starts a command, and waits for its end on a goroutine of its own.
func StartProcess(cmd *exec.Cmd) (*Process, error) {
	p := &Process{cmd: cmd, ended: make(chan struct{})}
	cmd.SysProcAttr = endWithParent()
	started := make(chan error)
	go func() { // the kernel takes the end of the thread that forks for the parent's
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // what the process has written says how it ended
			close(p.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// PID returns the id of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Ended returns a channel that is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Kill ends the process without a shutdown, and waits for its end.
func (p *Process) Kill() {
	p.signal(syscall.SIGKILL)
	<-p.ended
}

// Suspend stops the process with SIGSTOP: its sockets stay open, and it answers nothing.
func (p *Process) Suspend() { p.signal(syscall.SIGSTOP) }

// Resume ends Suspend.
func (p *Process) Resume() { p.signal(syscall.SIGCONT) }

// signal sends a signal; a process that has ended gets none.
func (p *Process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }
