package harness

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/childprocess"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// Command is a command line to run. Binary is required.
type Command struct {
	Binary string
	Args   []string
	// Env is what the process has in its environment besides that of the test.
	Env []string
	// Descriptors is how many file descriptors the process may open; 0: as many as the test.
	Descriptors int
	// Group makes the process the leader of a process group: signals go to its children, too, and all of them end with
	// the test process.
	Group bool
	// MayFail says that the test goes on if the process fails by itself.
	MayFail bool
}

// String returns the command line without its environment.
func (c Command) String() string { return filepath.Base(c.Binary) + " " + strings.Join(c.Args, " ") }

// cmd returns what os/exec runs.
func (c Command) cmd() *exec.Cmd {
	words := append([]string{c.Binary}, c.Args...)
	if c.Descriptors > 0 {
		words = append([]string{"/bin/sh", "-c", `ulimit -n "$1" && shift && exec "$@"`, "limited", strconv.Itoa(c.Descriptors)}, words...)
	}
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = append(append(os.Environ(), "GOTRACEBACK=all"), c.Env...)
	cmd.SysProcAttr = childprocess.DieWithParent()
	cmd.SysProcAttr.Setpgid = c.Group
	return cmd
}

// Start runs the command line until the end of the test at the latest. The test fails at once if the process fails
// without a signal from the test, unless it may.
func (c Command) Start(t testing.TB) *Daemon {
	t.Helper()
	d := &Daemon{Command: c, Log: &testkit.Log{}, t: t, cmd: c.cmd(), ended: make(chan struct{})}
	d.cmd.Stdout, d.cmd.Stderr = d.Log, d.Log
	begun := make(chan error)
	// For the kernel, the parent dies when the thread that forked ends.
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := d.cmd.Start()
		begun <- err
		if err == nil {
			d.cmd.Wait() // ProcessState has the exit code
			if code := d.cmd.ProcessState.ExitCode(); code > 0 && !c.MayFail && !d.signalled.Load() {
				t.Errorf("%v ended with code %d:\n%s", c, code, d.tail())
			}
			close(d.ended)
		}
	}()
	testkit.NoError(t, <-begun)
	if c.Group {
		d.guardGroup()
	}
	t.Cleanup(func() {
		d.Signal(syscall.SIGKILL)
		<-d.ended
		if text := d.tail(); t.Failed() && text != "" {
			t.Logf("%v:\n%s", c, text)
		}
	})
	return d
}

// guardGroup starts a process that kills the group when the test process ends in any way before the daemon: only the
// leader dies with its parent by itself. The guard waits for the end of a pipe, outside of the group, which may be frozen.
func (d *Daemon) guardGroup() {
	d.t.Helper()
	guard := exec.Command("/bin/sh", "-c", `cat; kill -s KILL -- "-$1"`, "guard", strconv.Itoa(d.PID()))
	guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // not the terminal's
	pipe := testkit.Must(guard.StdinPipe())
	testkit.NoError(d.t, guard.Start())
	d.t.Cleanup(func() { // when the daemon has ended
		guard.Process.Kill()
		guard.Wait()
		pipe.Close()
	})
}

// Output runs the command line to its end, which must be success, and returns what it writes to
// standard output.
func (c Command) Output(t testing.TB) string {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := c.cmd()
	cmd.Stdout, cmd.Stderr = &out, &errs
	// Otherwise the thread could end before the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %v\n%s%s", c, err, &out, &errs)
	}
	return out.String()
}
