package policy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(text), 0o666)); err != nil {
		t.Fatal(err)
	}
}

// TestBuildLeavesTestsOut: rules with a test in Go beside them are rules, and a folder
// of nothing but tests is no policy.
func TestBuildLeavesTestsOut(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "site_test.go"), "package site_test\n")
	if _, err := Build(context.Background(), dir, "", ""); err == nil || !strings.Contains(err.Error(), "has no Go, C or Rego file") {
		t.Errorf("tests alone: %v", err)
	}
	write(t, filepath.Join(dir, "site.rego"), "package cascade.plan\n\ndeny contains {\"code\": 1} if count(input.after.stages) > 2\n")
	b, err := Build(context.Background(), dir, "", "")
	if err != nil || b.Language != "rego" || b.Bytes == 0 {
		t.Errorf("%+v, %v", b, err)
	}
}

// TestZigIsThePinnedOne: what authors are told to install is what "make zig" installs,
// and what that has put into a checkout is found from below it.
func TestZigIsThePinnedOne(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\nZIG_WHEEL     := "+ZigWheel+"\n") {
		t.Errorf("the Makefile pins another than %s", ZigWheel)
	}
	root := t.TempDir()
	python := filepath.Join(root, ".cache", "zig", "bin", "python")
	write(t, filepath.Join(root, "go.mod"), "module "+modulePath+"\n")
	write(t, python, "")
	if got := wheels(filepath.Join(root, "examples", "bids")); !slices.Contains(got, python) {
		t.Errorf("%q without %s", got, python)
	}
}

// TestBuildC: the header comes with this program.
func TestBuildC(t *testing.T) {
	dir, err := filepath.Abs(filepath.Join("..", "..", "examples", "bid-c", "src"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := findC("", dir); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	b, err := Build(context.Background(), dir, filepath.Join(t.TempDir(), "near.wasm"), "")
	if err != nil || b.Language != "c" || b.Bytes == 0 {
		t.Fatalf("%+v, %v", b, err)
	}
	in, err := Inspect(context.Background(), b.File)
	if err != nil || in.Refused != "" || len(in.Kinds) != 1 || in.Kinds[0].Kind != "bid-select" {
		t.Errorf("%+v, %v", in, err)
	}
}
