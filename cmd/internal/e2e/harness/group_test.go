package harness

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// orphan is the environment variable that makes TestGroup the process that dies; "frozen" freezes the group before.
const orphan = "DAEMONTEST_ORPHAN"

// TestGroup: the children of a group end with the test process, however it dies, also while they are frozen.
func TestGroup(t *testing.T) {
	group := Command{Binary: "/bin/sh", Args: []string{"-c", "trap '' HUP; sleep 600 & echo child $! runs; wait"}, Group: true}
	if how := os.Getenv(orphan); how != "" {
		d := group.Start(t)
		d.WaitForLog("child [0-9]+ runs")
		fmt.Fprintln(os.Stderr, d.Log)
		if how == "frozen" {
			d.Signal(syscall.SIGSTOP)
		}
		os.Exit(3) // without cleanups
	}
	for _, how := range []string{"running", "frozen"} {
		t.Run(how, func(t *testing.T) {
			cmd := exec.Command(testkit.Must(os.Executable()), "-test.run=^TestGroup$")
			cmd.Env = append(os.Environ(), orphan+"="+how)
			out, _ := cmd.CombinedOutput()
			_, rest, found := strings.Cut(string(out), "child ")
			var pid int
			if _, err := fmt.Sscan(rest, &pid); !found || err != nil {
				t.Fatalf("the process printed %q: %v", out, err)
			}
			testkit.WaitFor(t, "the child has ended", func() bool {
				state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
				return err != nil || strings.Contains(string(state), ") Z ")
			})
		})
	}
}
