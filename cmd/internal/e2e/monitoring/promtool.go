package monitoring

import (
	"bytes"
	"os/exec"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

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
	return testkit.Program{
		Variable: "PROMTOOL", Cached: "prometheus/usr/bin/promtool", Name: "promtool",
		Missing: testkit.Unavailable{What: "promtool is not installed", Remedy: "run `make promtool`, or set PROMTOOL to it", InCI: true},
	}.Find(t)
}
