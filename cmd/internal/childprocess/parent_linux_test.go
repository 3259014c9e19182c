package childprocess_test

import (
	"bufio"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/childprocess"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// parent is the environment variable that makes the test the process that dies.
const parent = "CHILDPROCESS_PARENT"

// TestDieWithParent kills a process, whose child ends and so closes the pipe that both write to.
func TestDieWithParent(t *testing.T) {
	if os.Getenv(parent) != "" {
		runtime.LockOSThread()
		child := exec.Command("/bin/sh", "-c", "echo runs; exec sleep 600")
		child.Stdout, child.SysProcAttr = os.Stdout, childprocess.DieWithParent()
		testkit.NoError(t, child.Run())
		return
	}
	cmd := exec.Command(testkit.Must(os.Executable()), "-test.run=^TestDieWithParent$")
	cmd.Env = append(os.Environ(), parent+"=1")
	out := testkit.Must(cmd.StdoutPipe())
	testkit.NoError(t, cmd.Start())
	t.Cleanup(func() { cmd.Wait() })
	lines := bufio.NewReader(out)
	if line := testkit.Must(lines.ReadString('\n')); strings.TrimSpace(line) != "runs" {
		t.Fatalf("the child wrote %q", line)
	}
	testkit.NoError(t, cmd.Process.Kill())
	ended := make(chan struct{})
	go func() {
		lines.ReadString('\n') // until the last writer has ended
		close(ended)
	}()
	testkit.WaitFor(t, "the child has ended", func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
}
