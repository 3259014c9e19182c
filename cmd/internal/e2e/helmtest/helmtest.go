// Package helmtest finds the Helm that tests of the chart run.
package helmtest

import (
	"testing"

	"github.com/cascadeinfer/cascade/policies/testkit"
)

// Binary returns the path of Helm: $HELM, or that of "make helm". Without one it skips the test, also in continuous
// integration: to build it takes minutes. It fails the test if HELM is set but is not an executable file.
func Binary(t testing.TB) string {
	t.Helper()
	return testkit.Program{
		Variable: "HELM", Cached: "helm/helm",
		Missing: testkit.Unavailable{What: "there is no Helm", Remedy: "run `make helm`, or set HELM to a binary"},
	}.Find(t)
}
