package kubernetes

import (
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// formerChart is the chart of commit 99cdf35b, as "helm package" packs it.
const formerChart = "testdata/upgrade/cascade-99cdf35b.tgz"

// formerValues are the files of testdata/values that the former chart knows, with "" for none.
var formerValues = []string{"", "discovery", "epp", "ha", "minimal", "state"}

// release runs Helm on an API server.
func (a apiServer) release(t *testing.T, args ...string) {
	t.Helper()
	if out, err := helm(t, append(args, "--namespace", chartNamespace, "--kubeconfig", a.kubeconfig)...); err != nil {
		t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// TestUpgrade has a real API server accept the upgrade from the former chart to the present one and back, with the same
// values: objects have fields that cannot change. TestLife upgrades under load.
func TestUpgrade(t *testing.T) {
	testkit.SkipSlow(t)
	a := startAPIServer(t)
	for _, name := range formerValues {
		var values []string
		if name != "" {
			values = []string{"--values", "testdata/values/" + name + ".yaml"}
		}
		a.release(t, append([]string{"install", "cascade", formerChart}, values...)...)
		a.release(t, append([]string{"upgrade", "cascade", chart}, values...)...)
		a.release(t, "rollback", "cascade", "1")
		a.release(t, "uninstall", "cascade")
	}
	// What an upgrade cannot change is refused: the check would find it.
	a.release(t, "install", "cascade", formerChart)
	_, err := helm(t, "upgrade", "cascade", chart, "--set", "controlPlane.state.persistence.size=2Gi", "--namespace", chartNamespace, "--kubeconfig", a.kubeconfig)
	testkit.WantError(t, err, "updates to statefulset spec for fields other than")
	a.release(t, "uninstall", "cascade")
}
