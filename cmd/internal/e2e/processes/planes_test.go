package processes

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/envoytest"
)

// calmLoad starts a load that a control plane must not disturb.
func (f *fleet) calmLoad() *harness.Load { f.T.Helper(); return f.newLoad(8, 250, 300, 1000, 4000) }

// envoyHasEpoch returns a condition: an Envoy has the plan of an epoch, or a later one, from a control
// plane.
func envoyHasEpoch(e policies.Epoch) func(control.Status) bool {
	return func(s control.Status) bool { return s.Epoch >= e && envoyHasPlan("edge")(s) }
}

// TestPlannerDies kills the leading control plane, then the other one, then both, under load and
// with a real Envoy: the other one leads, has the loads at once, and no request fails. Operators' commands work at the leader and at the follower.
func TestPlannerDies(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t)
	f := newFleet(t, setup{envoy: true, replicas: 3, planes: 2})
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
	load := f.calmLoad()
	load.WaitForRequests(10)

	a.process.Kill()
	reached := b.await("has the Envoy", envoyHasPlan("edge"))
	if !hasFreshReports(reached) {
		t.Error("b does not know the loads")
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
	f.awaitEmpty(f.replicas...)
}
