package processes

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/envoytest"
)

// takeover bounds the time without anybody who plans: the lease and a renewal,
// and what machines take.
const takeover = 5 * time.Second

// calm is a load that no control plane may disturb.
var calm = kind{workers: 8, words: []int{40, 200, 800}, output: 250}

// epoch says that an Envoy has the plan of an epoch, or a later one, from a
// control plane.
func epoch(e policies.Epoch) func(control.Status) bool {
	return func(s control.Status) bool { return s.Epoch >= e && has("edge")(s) }
}

// kinds counts resources by type.
func kinds(sent []string) map[string]int {
	out := map[string]int{}
	for _, s := range sent {
		typ, _, _ := strings.Cut(s, " ")
		out[typ]++
	}
	return out
}

// onlyLoads fails the test if anything but the endpoints' weights was sent: no
// plan has changed.
func onlyLoads(t *testing.T, what string, sent []string) {
	t.Helper()
	t.Logf("%s: sent %v", what, kinds(sent))
	if n := len(sent) - kinds(sent)["ClusterLoadAssignment"]; n > 0 {
		t.Errorf("%s: %d resources were sent that are not endpoints: %v", what, n, sent)
	}
}

// TestPlannerDies kills the control plane that plans, then the other one, then
// both, under load and with a real Envoy between: the other one plans within 5 s,
// knows the loads at once, nothing is sent twice, and no request notices.
func TestPlannerDies(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t)
	f := newFleet(t, setup{envoy: true, replicas: 3, planes: 2})
	a, b := f.planes[0], f.planes[1]
	plans := f.watchPlans()
	a.await("has the Envoy", func(s control.Status) bool { return leads(s) && has("edge")(s) })
	b.await("follows a", follows("a"))
	load := newTraffic(f, newOracle(f), "http://"+f.file.Proxy.Listen, calm)
	load.after(10)

	before := f.wire.count()
	if before.sent < policies.MaxStages+2 || before.again > 0 {
		t.Fatalf("%d resources were sent at first, %d of them twice", before.sent, before.again)
	}
	at := time.Now()
	a.process.kill()
	moved := b.await("has the Envoy", has("edge"))
	t.Logf("the Envoy is at b after %v", time.Since(at))
	if !informed(moved) {
		t.Error("b does not know the loads")
	}
	onlyLoads(t, "moved from a to b", f.wire.since(t, before))
	took := plans.await("b").Sub(at)
	t.Logf("b has the planning lease after %v", took)
	if took > takeover {
		t.Errorf("nobody plans for %v, want at most %v", took, takeover)
	}
	if s := b.await("plans", func(s control.Status) bool { return s.Planner.Leads }); !informed(s) {
		t.Error("b plans, and does not know the loads")
	}
	b.cascade("drain", "r0", "--wait", "--timeout", patience.String())
	e := b.await("the Envoy has the plan without r0", epoch(2)).Epoch

	// The one that was killed comes back, and does as it is told.
	a.start()
	a.await("follows b", follows("b"))
	a.cascade("undrain", "r0")
	b.await("the Envoy has the plan with r0", epoch(e+1))
	load.after(10)
	if got := plans.held(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("the lease was held by %q, want a and then b", got)
	}

	// Nobody is there, and requests are answered.
	a.process.kill()
	b.process.kill()
	load.after(10)
	before = f.wire.count()
	b.start()
	a.start()
	until(t, "the Envoy is back", func() bool {
		x, _ := a.status()
		y, _ := b.status()
		return has("edge")(x) || has("edge")(y)
	})
	onlyLoads(t, "both came back", f.wire.since(t, before))
	until(t, "one plans", func() bool {
		x, _ := a.status()
		y, _ := b.status()
		return leads(x) && follows("a")(y) || leads(y) && follows("b")(x)
	})
	load.after(10)
	load.stop()
	load.report()
	plans.stop()
	t.Logf("the plan object was written %d times, epoch %d", plans.writes, plans.last.Epoch)
	if n := f.envoy.Stats(`update_rejected$`); n["cluster_manager.cds.update_rejected"]+n["listener_manager.lds.update_rejected"] > 0 {
		t.Errorf("the Envoy refused something: %v", n)
	}
	f.awaitEmpty(f.replicas...)
}
