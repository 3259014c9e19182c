package processes

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/envoytest"
)

// envoyHasEpoch returns a condition: an Envoy has the plan of an epoch, or a later one, from a control
// plane.
func envoyHasEpoch(e policies.Epoch) func(control.Status) bool {
	return func(s control.Status) bool { return s.Epoch >= e && envoyHasPlan("edge")(s) }
}

// TestPlannerDies kills the leading control plane, then the other one, then both, under load and
// with a real Envoy, in a fleet whose components have certificates by name: the other one leads, has the loads at once, and
// no request fails. The Envoy connects to it and receives nothing twice. Operators' commands work at the leader and at the
// follower. No control plane starts with the other one's certificate.
func TestPlannerDies(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t)
	files := identities(t, "--control", "a", "--control", "b", "--proxy", "edge", "--migrator", "r0", "--migrator", "r1", "--migrator", "r2")
	f := newFleet(t, setup{envoy: true, replicas: 3, planes: 2, edit: func(c *config.Fleet) {
		// The cache is so large that the load below changes no weight.
		c.Models[0].KVTokens, c.TLS = 1<<20, files
	}})
	a, b := f.planes[0], f.planes[1]
	plans := f.watchPlans()
	a.await("has the Envoy", func(s control.Status) bool { return isLeading(s) && envoyHasPlan("edge")(s) })
	b.await("follows a", isFollowing("a"))
	b.order("plan", "pin", llm, "--by", "ann") // the follower executes commands, too
	a.await("pinned", func(s control.Status) bool { return s.Models[0].Pinned != nil })
	a.order("plan", "pin", "--undo", llm, "--by", "ben")
	b.await("not pinned", func(s control.Status) bool { return s.Models[0].Pinned == nil })
	if x, y := a.cascade("plan", "history"), b.cascade("plan", "history"); x == "" || x != y {
		t.Errorf("history of a:\n%s\nhistory of b:\n%s", x, y)
	}
	load := f.newLoad(8, 250, 300, 1000, 4000)
	load.WaitForRequests(10)

	const counted = `(cluster_(added|modified|removed)|listener_(added|modified)|\.rds\..*config_reload|^cluster\.cascade/.*\.update_success)$`
	before := f.envoy.Stats(counted)
	a.process.Kill()
	reached := b.await("has the Envoy", envoyHasPlan("edge"))
	if !hasFreshReports(reached) {
		t.Error("b does not know the loads")
	}
	if after := f.envoy.Stats(counted); len(after) < policies.MaxStages || !maps.Equal(after, before) {
		t.Errorf("the Envoy has received %v, before %v", after, before)
	}
	plans.await("b")
	if s := b.await("plans", func(s control.Status) bool { return s.Planner.Leads }); !hasFreshReports(s) {
		t.Error("b plans, and does not know the loads")
	}
	if text := b.cascade("status"); !strings.Contains(text, "this control plane, b, plans") {
		t.Errorf("b says: %s", text)
	}
	b.order("drain", "r0", "--wait", "--timeout", patience.String())
	e := b.await("the Envoy has the plan without r0", envoyHasEpoch(2)).Epoch

	f.requireOwnCertificate(a, b)
	// The killed control plane restarts as a follower.
	a.start()
	a.await("follows b", isFollowing("b"))
	a.order("drain", "--undo", "r0")
	b.await("the Envoy has the plan with r0", envoyHasEpoch(e+1))
	load.WaitForRequests(10)
	if got := plans.held(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("the lease was held by %q, want a and then b", got)
	}

	// No control plane runs: requests are answered, and streams last from before the kill until
	// both are back.
	var long sync.WaitGroup
	for i := range 4 {
		long.Go(func() { load.Send(harness.Prompt(100+i, 400, 1200), true) })
	}
	load.WaitForRequests(4)
	a.process.Kill()
	b.process.Kill()
	load.WaitForRequests(10)
	b.start()
	a.start()
	f.WaitFor("the Envoy is back", func() bool {
		x, _ := a.status()
		y, _ := b.status()
		return envoyHasPlan("edge")(x) || envoyHasPlan("edge")(y)
	})
	f.WaitFor("one plans", func() bool {
		x, _ := a.status()
		y, _ := b.status()
		return isLeading(x) && isFollowing("a")(y) || isLeading(y) && isFollowing("b")(x)
	})
	load.WaitForRequests(10)
	load.Stop()
	long.Wait()
	load.Report()
	plans.stop()
	t.Logf("the plan object was written %d times, epoch %d", plans.writes, plans.last.Epoch)
	if n := f.envoy.Stats(`update_rejected$`); n["cluster_manager.cds.update_rejected"]+n["listener_manager.lds.update_rejected"] > 0 {
		t.Errorf("the Envoy refused something: %v", n)
	}
	for _, p := range f.planes {
		if strings.Contains(p.process.Log.String(), "client refused: its certificate does not match") {
			t.Errorf("%s refuses the fleet's own parts: %s", p.name, p.process.Log)
		}
	}
	f.awaitEmpty(f.replicas...)
}

// requireOwnCertificate checks that a control plane, which does not run, does not start with the certificate of another.
func (f *fleet) requireOwnCertificate(p, other *plane) {
	f.T.Helper()
	dir := filepath.Join(filepath.Dir(f.file.TLS.CA), "control")
	own := filepath.Join(dir, p.name)
	testkit.NoError(f.T, errors.Join(os.Rename(own, own+".own"), os.CopyFS(own, os.DirFS(filepath.Join(dir, other.name)))))
	p.launch()
	p.process.WaitForLog(fmt.Sprintf("is spiffe://fleet.test/control/%s, and spiffe://fleet.test/control/%s is wanted", other.name, p.name))
	f.WaitFor(p.name+" has ended", func() bool { return !p.process.Running() })
	testkit.NoError(f.T, errors.Join(os.RemoveAll(own), os.Rename(own+".own", own)))
}
