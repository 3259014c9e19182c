package policydev

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	testkit.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(text), 0o666)))
}

// TestBuildLeavesTestsOut checks that a folder of rules with a test in Go is built as rules, and
// that a folder with only tests is not a policy.
func TestBuildLeavesTestsOut(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "site_test.go"), "package site_test\n")
	if _, err := Build(context.Background(), dir, "", ""); err == nil || !strings.Contains(err.Error(), "has no Go, C or Rego file: \"cascade policy new\" begins a policy") {
		t.Errorf("tests alone: %v", err)
	}
	write(t, filepath.Join(dir, "site.rego"), "package cascade.plan\n\ndeny contains {\"code\": 1} if count(input.after.stages) > 2\n")
	b, err := Build(context.Background(), dir, "", "")
	if err != nil || b.Language != "rego" || b.Bytes == 0 {
		t.Errorf("%+v, %v", b, err)
	}
}

// TestZigIsThePinnedOne checks that the error has the version that "make zig" installs, and that
// a program in a checkout finds the installation of "make zig" there.
func TestZigIsThePinnedOne(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "e2e", "requirements", "zig.txt"))
	testkit.NoError(t, err)
	if !strings.Contains(string(text), "\n"+ZigWheel+" ") {
		t.Errorf("make zig installs another than %s", ZigWheel)
	}
	root := t.TempDir()
	python := filepath.Join(root, ".cache", "zig", "bin", "python")
	write(t, filepath.Join(root, "go.mod"), "module "+modulePath+"\n")
	write(t, python, "")
	if got := zigPython(filepath.Join(root, "bin", "cascade")); got != python {
		t.Errorf("%q, want %s", got, python)
	}
	if got := zigPython(filepath.Join(t.TempDir(), "cascade")); got != "" {
		t.Errorf("%q without a checkout", got)
	}
}

// zigHere returns the Python that "make zig" has installed into this checkout, or skips the
// test. findC does not find it, because test binaries run outside of the checkout.
func zigHere(t *testing.T) (python string) {
	t.Helper()
	python, err := filepath.Abs(filepath.Join("..", "..", "..", ".cache", "zig", "bin", "python"))
	testkit.NoError(t, err)
	if _, err := os.Stat(python); err != nil {
		testkit.Skip(t, testkit.Unavailable{What: "Zig, which compiles C to WebAssembly, is not installed", Remedy: "run `make zig`", InCI: true})
	}
	return python
}

// TestBuildRunsNothing checks that Build runs no program of the built folder or the working
// directory, even if they look like a checkout or have a file with a compiler's name.
func TestBuildRunsNothing(t *testing.T) {
	python := zigHere(t)
	theirs, path := t.TempDir(), t.TempDir()
	ran := filepath.Join(t.TempDir(), "ran")
	script := func(file, text string) {
		write(t, file, text)
		testkit.NoError(t, os.Chmod(file, 0o755))
	}
	script(filepath.Join(path, "python3"), "#!/bin/sh\nexec '"+python+"' \"$@\"\n")
	t.Setenv("PATH", path)
	write(t, filepath.Join(theirs, "go.mod"), "module "+modulePath+"\n")
	for _, at := range []string{theirs, filepath.Join(theirs, "bids")} {
		script(filepath.Join(at, ".cache", "zig", "bin", "python"), "#!/bin/sh\necho python > '"+ran+"'\n")
		for _, name := range []string{"zig", "clang", "python", "python3"} {
			script(filepath.Join(at, name), "#!/bin/sh\necho "+name+" > '"+ran+"'\n")
		}
		for _, name := range []string{"ziglang.py", "sitecustomize.py", "os.py"} {
			write(t, filepath.Join(at, name), "open('"+ran+"', 'w').write('"+name+"')\n")
		}
	}
	write(t, filepath.Join(theirs, "bids", "bids.c"), "int cs_none(void) { return 0; }\n")
	for _, from := range []string{theirs, filepath.Join(theirs, "bids"), t.TempDir()} {
		t.Chdir(from)
		for _, compiler := range []string{"", "python3 -m ziglang cc"} {
			b, err := Build(context.Background(), filepath.Join(theirs, "bids"), filepath.Join(t.TempDir(), "bids.wasm"), compiler)
			if err != nil || b.Bytes == 0 {
				t.Errorf("in %s, with %q: %+v, %v", from, compiler, b, err)
			}
			if who, err := os.ReadFile(ran); err == nil {
				t.Fatalf("in %s, with %q: ran %s", from, compiler, who)
			}
		}
	}
	write(t, filepath.Join(theirs, "bids", "@args.c"), "-o bids.wasm")
	if _, err := Build(context.Background(), filepath.Join(theirs, "bids"), filepath.Join(theirs, "out"), ""); err == nil || !strings.Contains(err.Error(), "rename it") {
		t.Errorf("a name that is an option: %v", err)
	}
}

// TestBuildFetchesNothing checks that Build downloads neither a Go toolchain nor a module.
func TestBuildFetchesNothing(t *testing.T) {
	for text, want := range map[string]string{
		"module x\n\ngo 1.26\n\ntoolchain go1.999.0\n":              "",
		"module x\n\ngo 1.999.0\n":                                  "GOTOOLCHAIN=local",
		"module x\n\ngo 1.26\n\nrequire example.invalid/y v1.0.0\n": "go mod download",
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "go.mod"), text)
		write(t, filepath.Join(dir, "go.sum"), "example.invalid/y v1.0.0 h1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\nexample.invalid/y v1.0.0/go.mod h1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n")
		imports := "import _ \"example.invalid/y\"\n"
		if want == "" {
			imports = ""
		}
		write(t, filepath.Join(dir, "main.go"), "package main\n\n"+imports+"\nfunc main() {}\n")
		t.Setenv("GOPROXY", "http://127.0.0.1:1")
		_, err := Build(context.Background(), dir, filepath.Join(t.TempDir(), "x.wasm"), "")
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestBuildC checks that a policy in C can include the header of this program.
func TestBuildC(t *testing.T) {
	dir, err := filepath.Abs(filepath.Join("..", "..", "..", "examples", "bid-c", "src"))
	testkit.NoError(t, err)
	b, err := Build(context.Background(), dir, filepath.Join(t.TempDir(), "near.wasm"), zigHere(t)+" -m ziglang cc")
	if err != nil || b.Language != "c" || b.Bytes == 0 {
		t.Fatalf("%+v, %v", b, err)
	}
	in, err := Inspect(context.Background(), b.File)
	if err != nil || in.Refused != "" || len(in.Kinds) != 1 || in.Kinds[0].Kind != "bid-select" {
		t.Errorf("%+v, %v", in, err)
	}
}
