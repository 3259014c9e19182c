package testkit_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

func (e *ended) Fatalf(string, ...any) { e.by += "fatal " }

// TestProgram: the variable counts before the cache, and the cache before PATH; a variable that names no program
// fails the test, and a program that is nowhere skips it.
func TestProgram(t *testing.T) {
	root := t.TempDir()
	write := func(mode os.FileMode, path ...string) string {
		file := filepath.Join(append([]string{root}, path...)...)
		testkit.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		testkit.NoError(t, os.WriteFile(file, nil, mode))
		return file
	}
	write(0o600, "go.mod")
	plain, named, inPath := write(0o600, "plain"), write(0o700, "named"), write(0o700, "bin", "tool")
	testkit.NoError(t, os.MkdirAll(filepath.Join(root, "a", "b"), 0o700))
	t.Chdir(filepath.Join(root, "a", "b"))
	t.Setenv("CI", "")
	t.Setenv("PATH", filepath.Dir(inPath))
	p := testkit.Program{Variable: "TOOL", Cached: "tools/tool", Name: "tool", Missing: testkit.Unavailable{What: "there is no tool"}}
	expect := func(what, variable, want, by string) {
		t.Helper()
		t.Setenv("TOOL", variable)
		e := &ended{TB: t}
		if got := p.Find(e); got != want || e.by != by {
			t.Errorf("%s: %q, %q; want %q, %q", what, got, e.by, want, by)
		}
	}
	below := filepath.Join(root, "a", "go.mod")
	testkit.NoError(t, os.WriteFile(below, []byte("// A module of its own.\nmodule github.com/cascadeinfer/cascade/a\n"), 0o600))
	if got := testkit.Root(t); got != root {
		t.Errorf("root %s, want %s", got, root)
	}
	expect("in PATH", "", inPath, "")
	cached := write(0o700, ".cache", "tools", "tool")
	expect("in the cache", "", cached, "")
	expect("named", named, named, "")
	expect("named, not executable", plain, plain, "fatal ")
	testkit.NoError(t, os.Remove(cached))
	p.Name = ""
	expect("nowhere", "", "", "skip ")
}
