package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// Daemon is one running process of the command line.
type Daemon struct {
	Command Command      // what runs
	Log     *testkit.Log // standard output and error

	t         testing.TB
	cmd       *exec.Cmd
	signalled atomic.Bool   // the test has sent a signal
	ended     chan struct{} // closed when the process has ended
}

// tail returns the end of the log.
func (d *Daemon) tail() string {
	text := d.Log.String()
	return text[max(0, len(text)-tail):]
}

// PID returns the process id.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// Signal sends a signal to the process, unless it has ended, or to its group.
func (d *Daemon) Signal(s syscall.Signal) {
	d.signalled.Store(true)
	if d.Command.Group {
		syscall.Kill(-d.PID(), s) // children may outlive the process
		return
	}
	d.cmd.Process.Signal(s)
}

// Kill ends the process without a shutdown and waits for its end.
func (d *Daemon) Kill() {
	d.Signal(syscall.SIGKILL)
	<-d.ended
}

// Stop terminates the process and waits for its end.
func (d *Daemon) Stop() {
	d.t.Helper()
	d.Signal(syscall.SIGTERM)
	d.Wait()
}

// Wait waits until the process has ended by itself with exit code 0. If it does not end, its log
// has its goroutines.
func (d *Daemon) Wait() {
	d.t.Helper()
	select {
	case <-d.ended:
	case <-time.After(endTimeout):
		d.Signal(syscall.SIGQUIT)
		select {
		case <-d.ended:
		case <-time.After(dumpTimeout):
		}
		d.t.Fatalf("%v has not ended for %v", d.Command, endTimeout)
	}
	if code := d.cmd.ProcessState.ExitCode(); code != 0 { // -1: ended by a signal
		d.t.Fatalf("%v ended with code %d:\n%s", d.Command, code, d.Log)
	}
}

// WaitForLog waits until the process has written text that matches.
func (d *Daemon) WaitForLog(pattern string) {
	d.t.Helper()
	re := regexp.MustCompile(pattern)
	testkit.WaitFor(d.t, fmt.Sprintf("%v writes %s", d.Command, pattern), func() bool {
		running := d.Running() // before the log is read, which is complete once it has ended
		matches := re.MatchString(d.Log.String())
		if !running && !matches {
			d.t.Fatalf("%v has ended, %v, and has not written %s", d.Command, d.cmd.ProcessState, pattern)
		}
		return matches
	})
}

// Running reports whether the process has not ended.
func (d *Daemon) Running() bool {
	select {
	case <-d.ended:
		return false
	default:
		return true
	}
}

// Peak returns the most memory that a running process has used at a time, in bytes, as the
// kernel counted it.
func Peak(t testing.TB, pid int) int64 {
	t.Helper()
	page, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	requireProc(t, pid, err == nil)
	m := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(page)
	if m == nil {
		t.Fatalf("process %d has no peak: %s", pid, page)
	}
	return testkit.Must(strconv.ParseInt(string(m[1]), 10, 64)) << 10
}

// Listeners returns the loopback addresses on which the process listens.
func (d *Daemon) Listeners() []string {
	d.t.Helper()
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", d.PID()))
	requireProc(d.t, d.PID(), err == nil && len(links) > 0)
	own := map[string]bool{}
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil {
			own[strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]")] = true
		}
	}
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", d.PID()))
	testkit.NoError(d.t, err)
	var out []string
	for line := range strings.Lines(string(table)) {
		// sl, local address, remote address, state (0A: listening), …, inode
		c := strings.Fields(line)
		if len(c) < 10 || c[3] != "0A" || !own[c[9]] {
			continue
		}
		_, hex, _ := strings.Cut(c[1], ":")
		port := testkit.Must(strconv.ParseUint(hex, 16, 16))
		out = append(out, fmt.Sprintf("127.0.0.1:%d", port))
	}
	return out
}

// requireProc fails the test unless the kernel has shown the process; where none does, it skips
// the test.
func requireProc(t testing.TB, pid int, shown bool) {
	t.Helper()
	switch {
	case shown:
	case runtime.GOOS == "linux":
		t.Fatalf("process %d has no entry in /proc: it has ended", pid)
	default:
		testkit.Skip(t, testkit.Unavailable{What: "this system does not show the memory and the sockets of a process", Remedy: "run it on Linux"})
	}
}
