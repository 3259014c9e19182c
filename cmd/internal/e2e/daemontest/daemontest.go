// Package daemontest runs Cascade's daemons as processes of a test: the real binary, real sockets,
// and what the kernel knows of a process, its peak memory and its listeners.
//
// A test binary calls Build once, from TestMain, and Start for each daemon. A daemon ends with its
// test at the latest, and with the test process in any case.
package daemontest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cascadeinfer/cascade/policies/testkit"
)

// tail is how much of a daemon's output a failed test shows, in bytes.
const tail = 6 << 10

// Build builds the command line into a directory, and returns the binary's path.
func Build(dir string) (string, error) {
	binary := filepath.Join(dir, "cascade")
	out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", binary, "github.com/cascadeinfer/cascade/cmd/cascade").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return binary, nil
}

// Daemon is one running process of the command line.
type Daemon struct {
	Log *testkit.Log // standard output and error

	t    testing.TB
	args string
	cmd  *exec.Cmd
	gone chan struct{} // closed when it has ended
}

// Start runs a command line until the end of the test at the latest.
func Start(t testing.TB, binary string, args ...string) *Daemon {
	t.Helper()
	d := &Daemon{t: t, args: strings.Join(args, " "), cmd: exec.Command(binary, args...), Log: &testkit.Log{}, gone: make(chan struct{})}
	d.cmd.Stdout, d.cmd.Stderr, d.cmd.SysProcAttr = d.Log, d.Log, dieWithParent()
	begun := make(chan error)
	// For the kernel, the parent dies when the thread that forked ends.
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := d.cmd.Start()
		begun <- err
		if err == nil {
			d.cmd.Wait() // the log shows how it ended
			close(d.gone)
		}
	}()
	testkit.NoError(t, <-begun)
	t.Cleanup(func() {
		d.cmd.Process.Signal(syscall.SIGKILL)
		<-d.gone
		if text := d.Log.String(); t.Failed() && text != "" {
			t.Logf("cascade %s:\n%s", d.args, text[max(0, len(text)-tail):])
		}
	})
	return d
}

// WaitForLog waits until the daemon has written text that matches.
func (d *Daemon) WaitForLog(pattern string) {
	d.t.Helper()
	re := regexp.MustCompile(pattern)
	testkit.WaitFor(d.t, "cascade "+d.args+" writes "+pattern, func() bool {
		select {
		case <-d.gone:
			d.t.Fatalf("cascade %s has ended: %s", d.args, d.cmd.ProcessState)
		default:
		}
		return re.MatchString(d.Log.String())
	})
}

// Running reports whether the process has not ended.
func (d *Daemon) Running() bool {
	select {
	case <-d.gone:
		return false
	default:
		return true
	}
}

// Peak returns the most memory that the running process has used at a time, in bytes, as the
// kernel counted it.
func (d *Daemon) Peak() int64 {
	d.t.Helper()
	page, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	if err != nil {
		d.t.Skip("no /proc has the peak of a process's memory")
	}
	m := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(page)
	if m == nil {
		d.t.Fatalf("cascade %s has no peak: %s", d.args, page)
	}
	return testkit.Must(strconv.ParseInt(string(m[1]), 10, 64)) << 10
}

// Listeners returns the loopback addresses on which the process listens.
func (d *Daemon) Listeners() []string {
	d.t.Helper()
	pid := d.cmd.Process.Pid
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(links) == 0 {
		d.t.Skip("no /proc lists the sockets of a process")
	}
	own := map[string]bool{}
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil {
			own[strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]")] = true
		}
	}
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
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
