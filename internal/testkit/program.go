package testkit

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Program is a program that tests run and that is not Cascade's own. Variable, Cached and Missing are required.
type Program struct {
	Variable string      // the environment variable that names it, before all else
	Cached   string      // its path below .cache in the Root, where a target of make puts it
	Name     string      // in PATH, where it is sought last; "": not there
	Missing  Unavailable // why a test without it does not run
}

// Find returns the path of the program. Without one it skips the test, or fails it (Skip). It fails the test if
// the variable is set but does not name an executable file.
func (p Program) Find(t testing.TB) string {
	t.Helper()
	if path := os.Getenv(p.Variable); path != "" {
		if _, err := exec.LookPath(path); err != nil {
			t.Fatalf("%s: %v", p.Variable, err)
		}
		return path
	}
	if found, err := exec.LookPath(filepath.Join(Root(t), ".cache", p.Cached)); err == nil {
		return found
	}
	if p.Name != "" {
		if found, err := exec.LookPath(p.Name); err == nil {
			return found
		}
	}
	Skip(t, p.Missing)
	return ""
}

// nested begins the module line of the go.mod of a module below the root's.
const nested = "module github.com/cascadeinfer/cascade/"

// Root returns the root of the repository: the folder of the first go.mod at or above the test's, but for those of
// modules below the root's.
func Root(t testing.TB) string {
	t.Helper()
	start := Must(os.Getwd())
	for dir := start; ; dir = filepath.Dir(dir) {
		if text, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil && !strings.Contains("\n"+string(text), "\n"+nested) {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatalf("no go.mod at or above %s", start)
		}
	}
}
