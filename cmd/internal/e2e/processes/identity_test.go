package processes

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/envoytest"
)

// TestControlPlanesWithIdentities runs two control planes with certificates by name, and kills the
// leader: a real Envoy connects to the other one and receives nothing twice. Neither control plane
// starts with the other one's certificate.
func TestControlPlanesWithIdentities(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t)
	files := identities(t, "--control", "a", "--control", "b", "--proxy", "edge", "--migrator", "r0", "--migrator", "r1")
	f := newFleet(t, setup{envoy: true, replicas: 2, planes: 2, edit: func(c *config.Fleet) {
		// The cache is so large that the load below changes no weight.
		c.Models[0].KVTokens = 1 << 20
		c.TLS = files
	}})
	a, b := f.planes[0], f.planes[1]
	a.await("has the Envoy", func(s control.Status) bool { return isLeading(s) && envoyHasPlan("edge")(s) })
	b.await("follows a", isFollowing("a"))
	load := f.calmLoad()
	load.WaitForRequests(5)

	const counted = `(cluster_(added|modified|removed)|listener_(added|modified)|\.rds\..*config_reload|^cluster\.cascade/.*\.update_success)$`
	before := f.envoy.Stats(counted)
	a.process.Kill()
	if s := b.await("has the Envoy", envoyHasPlan("edge")); !hasFreshReports(s) {
		t.Error("b does not know the loads")
	}
	after := f.envoy.Stats(counted)
	if len(after) < policies.MaxStages {
		t.Errorf("too few statistics: %v", after)
	}
	for name, n := range after {
		if before[name] != n {
			t.Errorf("%s: %d before, %d after", name, before[name], n)
		}
	}
	b.await("plans", isLeading)
	b.order("drain", "r0", "--wait", "--timeout", patience.String())

	// With the other one's certificate it does not restart.
	dir := filepath.Join(filepath.Dir(files.CA), "control")
	own, others := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	testkit.NoError(t, errors.Join(os.Rename(own, own+".own"), os.CopyFS(own, os.DirFS(others))))
	out, err := exec.Command(cascade, "control", "-c", f.path("fleet.yaml"), "--name", "a", "--listen", a.listen, "--admin", a.admin).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "is spiffe://fleet.test/control/b, and spiffe://fleet.test/control/a is wanted") {
		t.Errorf("with the certificate of b: %v: %s", err, out)
	}
	testkit.NoError(t, errors.Join(os.RemoveAll(own), os.Rename(own+".own", own)))
	a.start()
	a.await("follows b", isFollowing("b"))
	a.order("drain", "--undo", "r0")
	b.await("the Envoy has the plan with r0", envoyHasEpoch(3))
	load.WaitForRequests(5)
	load.Stop()
	load.Report()
	for _, p := range f.planes {
		if strings.Contains(p.process.Log.String(), "client refused: its certificate does not match") {
			t.Errorf("%s refuses the fleet's own parts: %s", p.name, p.process.Log)
		}
	}
}
