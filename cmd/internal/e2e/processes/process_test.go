package processes

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/clienttest"
	"github.com/cascadeinfer/cascade/policies/testkit"
)

const (
	patience = clienttest.Patience
	// tick is the time between two checks of another process, which sends no events to the test.
	tick = 20 * time.Millisecond
	// tail is how much of a process's output a failed test shows, in bytes.
	tail = 6 << 10
)

// process runs one of our command lines.
type process struct {
	t    testing.TB
	args string
	cmd  *exec.Cmd
	out  *testkit.Log  // standard output and error
	gone chan struct{} // closed when it has ended
	code int           // valid once gone; -1: ended by a signal
}

// start runs one of our command lines until the end of the test at the latest.
func start(t testing.TB, args ...string) *process {
	t.Helper()
	return startWith(t, nil, args...)
}

// startWith is start with additional environment variables.
func startWith(t testing.TB, env []string, args ...string) *process {
	t.Helper()
	return startCommand(t, exec.Command(cascade, args...), env, args)
}

// startLimited is startWith for a process that may open so many descriptors.
func startLimited(t testing.TB, descriptors int, env []string, args ...string) *process {
	t.Helper()
	shell := append([]string{"-c", `ulimit -n "$1" && shift && exec "$@"`, "limited", strconv.Itoa(descriptors), cascade}, args...)
	return startCommand(t, exec.Command("/bin/sh", shell...), env, args)
}

func startCommand(t testing.TB, cmd *exec.Cmd, env, args []string) *process {
	t.Helper()
	p := &process{t: t, args: strings.Join(args, " "), cmd: cmd, out: &testkit.Log{}, gone: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.SysProcAttr = p.out, p.out, dieWithParent()
	p.cmd.Env = append(append(os.Environ(), "GOTRACEBACK=all"), env...)
	begun := make(chan error)
	// For the kernel, the parent dies when the thread that forked ends.
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		begun <- err
		if err != nil {
			return
		}
		p.cmd.Wait() // the exit code is read below
		p.code = p.cmd.ProcessState.ExitCode()
		close(p.gone)
	}()
	testkit.NoError(t, <-begun)
	t.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		<-p.gone
		if text := p.out.String(); t.Failed() && text != "" {
			t.Logf("cascade %s:\n%s", p.args, text[max(0, len(text)-tail):])
		}
	})
	return p
}

// signal sends a signal, unless the process is gone.
func (p *process) signal(s syscall.Signal) { p.cmd.Process.Signal(s) }

// kill ends the process without a shutdown and waits for its end.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.gone
}

// wait waits until the process has ended by itself with exit code 0.
func (p *process) wait() {
	p.t.Helper()
	select {
	case <-p.gone:
		if p.code != 0 {
			p.t.Fatalf("cascade %s ends with code %d:\n%s", p.args, p.code, p.out)
		}
	case <-time.After(patience):
		p.signal(syscall.SIGQUIT)
		time.Sleep(tick)
		p.t.Fatalf("cascade %s does not end", p.args)
	}
}

// end terminates the process and waits until it has ended.
func (p *process) end() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	p.wait()
}

// await waits until the process has written text that matches.
func (p *process) await(pattern string) {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	testkit.WaitFor(p.t, "cascade "+p.args+" writes "+pattern, func() bool { return re.MatchString(p.out.String()) })
}

// command runs a command line to its end and returns what it wrote to standard
// output.
func command(t testing.TB, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.Command(cascade, args...)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = &out, &errs, dieWithParent()
	// Otherwise the thread could end before the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Run(); err != nil {
		t.Fatalf("cascade %s: %v\n%s%s", strings.Join(args, " "), err, &out, &errs)
	}
	return out.String()
}
