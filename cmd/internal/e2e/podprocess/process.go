package podprocess

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"github.com/cascadeinfer/cascade/cmd/internal/childprocess"
)

// maxOutput is how much of what a container writes is kept, in bytes.
const maxOutput = 64 << 10

// process is a container.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended
	err   error         // how; valid once it has ended

	mu     sync.Mutex
	output []byte // the end of it; guarded by mu
}

// Write keeps what the container writes.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.output = append(p.output, b...)
	p.output = p.output[max(0, len(p.output)-maxOutput):]
	return len(b), nil
}

// tail returns the last lines that the container has written.
func (p *process) tail() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(p.output[max(0, len(p.output)-3000):])
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) } // fails only if it has ended

// startProcess starts a command that ends with this process.
func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p, p
	cmd.SysProcAttr = childprocess.DieWithParent()
	started := make(chan error)
	go func() { // for the kernel, the parent dies with the thread that forks
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.ended)
		}
	}()
	return p, <-started
}
