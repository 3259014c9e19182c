package monitoring

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cascadeinfer/cascade/policies/testkit"
)

// Root returns the root of the repository: the folder of Cascade's go.mod at or above the test's.
func Root(t testing.TB) string {
	t.Helper()
	dir := testkit.Must(os.Getwd())
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("monitoring: no go.mod at or above the test's folder")
		}
		dir = filepath.Dir(dir)
	}
}

// Promtool runs promtool with arguments in a folder, with input on its standard input, and returns all that it writes. The program
// is the one that PROMTOOL names, else the one of "make promtool", else the one in PATH. Without any the test is
// skipped, or fails if CI is set.
func Promtool(t testing.TB, dir string, input []byte, args ...string) (output string, err error) {
	t.Helper()
	cmd := exec.Command(findPromtool(t), args...)
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(input)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func findPromtool(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("PROMTOOL"); path != "" {
		if _, err := exec.LookPath(path); err != nil {
			t.Fatalf("monitoring: PROMTOOL: %v", err)
		}
		return path
	}
	for _, path := range []string{filepath.Join(Root(t), ".cache", "prometheus", "usr", "bin", "promtool"), "promtool"} {
		if found, err := exec.LookPath(path); err == nil {
			return found
		}
	}
	testkit.Skip(t, testkit.Unavailable{What: "promtool is not installed", Remedy: "run `make promtool`, or set PROMTOOL to it", InCI: true})
	return ""
}
