package device

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestLoad(t *testing.T) {
	if _, err := Load("libnothing-at-all.so.7"); errors.Is(err, ErrNoCgo) {
		t.Skip(err)
	} else if !errors.Is(err, ErrNoLibrary) || !strings.Contains(err.Error(), "libnothing-at-all.so.7") {
		t.Errorf("a library that is not there: %v", err)
	}
	lib, err := Load("libc.so.6")
	if err != nil {
		t.Fatal(err)
	}
	if p, err := lib.Symbol("getpid"); err != nil || p == nil {
		t.Errorf("%v, %v", p, err)
	}
	var missing *SymbolError
	if _, err := lib.Symbol("getnothing"); !errors.As(err, &missing) || missing.Symbol != "getnothing" || missing.Library != "libc.so.6" {
		t.Errorf("a symbol that is not there: %v", err)
	}
}

// TestWithoutCgo builds this folder without cgo, and runs the tests of this
// package so.
func TestWithoutCgo(t *testing.T) {
	if os.Getenv("CGO_ENABLED") == "0" {
		t.Skip("this is the run without cgo")
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-run", "WithoutLibraries", "./...")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestLoadWithoutLibraries(t *testing.T) {
	if os.Getenv("CGO_ENABLED") != "0" {
		t.Skip("run by TestWithoutCgo")
	}
	if _, err := Load("libc.so.6"); !errors.Is(err, ErrNoCgo) {
		t.Errorf("%v", err)
	}
	if _, err := (&Library{}).Symbol("getpid"); !errors.Is(err, ErrNoCgo) {
		t.Errorf("%v", err)
	}
}
