package harness

import (
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// failing is a test that records its first error, and does not end by it.
type failing struct {
	*testing.T
	failed chan string
}

func (f failing) Errorf(format string, args ...any) { f.failed <- strings.TrimSpace(format) }

// TestFailedProcess checks that a process that fails by itself fails the test, unless it may, or the test ended it.
func TestFailedProcess(t *testing.T) {
	script := Command{Binary: "/bin/sh", Args: []string{"-c", "trap 'exit 3' TERM; echo runs; sleep 0.1; exit 3"}}
	for _, may := range []bool{false, true} {
		script.MayFail = may
		f := failing{t, make(chan string, 1)}
		d := script.Start(f)
		testkit.WaitForEvent(t, "the process ends", d.ended)
		if failed := len(f.failed) == 1; failed == may {
			t.Errorf("may fail %v: the test failed %v", may, failed)
		}
	}
	script.MayFail, script.Args[1] = false, "trap 'exit 3' TERM; echo runs; while :; do sleep 0.1; done"
	f := failing{t, make(chan string, 1)}
	d := script.Start(f)
	d.WaitForLog("runs")
	d.Signal(15)
	testkit.WaitForEvent(t, "the process ends", d.ended)
	if len(f.failed) == 1 {
		t.Error("the test failed by a process that it ended")
	}
}
