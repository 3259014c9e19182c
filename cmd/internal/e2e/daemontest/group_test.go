package daemontest

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/policies/testkit"
)

// orphan is the environment variable that makes TestGroup the process that dies.
const orphan = "DAEMONTEST_ORPHAN"

// TestGroup: the children of a group end with the test process, however it dies.
func TestGroup(t *testing.T) {
	group := Command{Binary: "/bin/sh", Args: []string{"-c", "sleep 600 & echo child $! runs; wait"}, Group: true}
	if os.Getenv(orphan) != "" {
		d := group.Start(t)
		d.WaitForLog("child [0-9]+ runs")
		fmt.Fprintln(os.Stderr, d.Log)
		os.Exit(3) // without cleanups
	}
	cmd := exec.Command(testkit.Must(os.Executable()), "-test.run=^TestGroup$")
	cmd.Env = append(os.Environ(), orphan+"=1")
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
}
