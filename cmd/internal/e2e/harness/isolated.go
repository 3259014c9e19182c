package harness

import (
	"bytes"
	"flag"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/childprocess"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// variable is the environment variable with the name of the test that runs in namespaces of its own.
const variable = "CASCADE_TEST_ISOLATED"

// margin is how long before the deadline of the outer test the inner one ends, so that its report is read.
const margin = 10 * time.Second

// RunIsolated reports whether the test is in namespaces of its own. If it is not, RunIsolated runs it there once, with this process's flags
// and arguments and additional environment variables, as a process that ends with this one, and returns when it has ended; the
// outer test then ends as the inner one did. It skips the test where no namespaces can be made. t must not be a subtest.
func RunIsolated(t *testing.T, env ...string) bool {
	t.Helper()
	if os.Getenv(variable) == t.Name() {
		return true
	}
	enter := command(t)
	args := append(enter[1:len(enter):len(enter)], testkit.Must(os.Executable()))
	flag.Visit(func(f *flag.Flag) {
		if f.Name != "test.testlogfile" { // both would write to it
			args = append(args, "-"+f.Name+"="+f.Value.String())
		}
	})
	args = append(args, "-test.v", "-test.count=1", "-test.run=^"+regexp.QuoteMeta(t.Name())+"$")
	if deadline, ok := t.Deadline(); ok {
		args = append(args, "-test.timeout="+(time.Until(deadline)-margin).String())
	}
	cmd := exec.Command(enter[0], append(args, flag.Args()...)...)
	cmd.Env = append(append(os.Environ(), variable+"="+t.Name()), env...)
	cmd.SysProcAttr = childprocess.DieWithParent()
	var out bytes.Buffer
	cmd.Stdout = io.MultiWriter(&out, t.Output())
	cmd.Stderr = cmd.Stdout
	runtime.LockOSThread() // for the kernel, the parent dies with this thread
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	switch outcome := out.String(); {
	case err != nil:
		t.Errorf("the test in namespaces of its own: %v", err)
	case strings.Contains(outcome, "--- SKIP: "+t.Name()+" ("): // not one of a subtest
		testkit.Skip(t, testkit.Unavailable{What: "it was skipped in namespaces of its own", Remedy: "do what its output says"})
	case !strings.Contains(outcome, "--- PASS: "+t.Name()+" ("):
		t.Error("the test in namespaces of its own has not run")
	}
	return false
}

// CopyEtc replaces /etc by a copy, which the test may change and in which mount points can be made, without name servers. The
// test must be in namespaces of its own.
func CopyEtc(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	for _, args := range [][]string{{"cp", "-a", "/etc/.", dir}, {"mount", "--bind", dir, "/etc"}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	testkit.NoError(t, os.WriteFile("/etc/resolv.conf", nil, 0o644))
}

// command returns the command line that runs another one, which is added to it, in new namespaces with loopback.
func command(t *testing.T) []string {
	t.Helper()
	enter := []string{testkit.Tool(t, "unshare"), "--net", "--mount"}
	if os.Geteuid() != 0 {
		enter = append(enter, "--user", "--map-root-user")
	}
	testkit.Tool(t, "ip")
	enter = append(enter, "sh", "-c", `ip link set lo up && exec "$@"`, "isolated")
	if out, err := exec.Command(enter[0], append(enter[1:], "true")...).CombinedOutput(); err != nil {
		testkit.Skip(t, testkit.Unavailable{What: "this user cannot make namespaces: " + strings.TrimSpace(string(out)), Remedy: "run it on Linux as root, or permit user namespaces"})
	}
	return enter
}
