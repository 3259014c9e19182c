// Package helmtest finds the Helm that tests of the chart run.
package helmtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cascadeinfer/cascade/policies/testkit"
)

// Binary returns the path of Helm: $HELM, or what "make helm" put into .cache of the repository, whose root is
// given. It skips the test without one.
func Binary(t *testing.T, root string) string {
	t.Helper()
	path := os.Getenv("HELM")
	if path == "" {
		path = filepath.Join(root, ".cache", "helm", "helm")
	}
	path, err := exec.LookPath(path)
	if err != nil {
		testkit.Skip(t, testkit.Unavailable{What: "there is no Helm", Remedy: "run `make helm`, or set HELM to a binary"})
	}
	return path
}
