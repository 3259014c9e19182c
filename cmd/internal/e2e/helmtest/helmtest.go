// Package helmtest finds the Helm that tests of the chart run.
package helmtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cascadeinfer/cascade/policies/testkit"
)

// Binary returns the path of Helm: $HELM, or that of "make helm". Without one it skips the test, also in continuous
// integration: to build it takes minutes. It fails the test if HELM is set but is not an executable file.
func Binary(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("HELM"); path != "" {
		if _, err := exec.LookPath(path); err != nil {
			t.Fatalf("helmtest: HELM: %v", err)
		}
		return path
	}
	dir := testkit.Must(os.Getwd())
	for ; filepath.Dir(dir) != dir; dir = filepath.Dir(dir) {
		if found, err := exec.LookPath(filepath.Join(dir, ".cache", "helm", "helm")); err == nil {
			return found
		}
	}
	testkit.Skip(t, testkit.Unavailable{What: "there is no Helm", Remedy: "run `make helm`, or set HELM to a binary"})
	return ""
}
