package processes

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/envoytest"
)

// takeover bounds the time without a leader: the lease and a renewal, plus the overhead of hosts.
const takeover = 5 * time.Second

// pulse measures the scheduling delay of this host: on a host that stalled, a slow reaction says
// nothing about the fleet.
type pulse struct {
	worst time.Duration // valid once stopped
	stop  func()
}

func newPulse(t testing.TB) *pulse {
	const beat = 10 * time.Millisecond
	p, quit := &pulse{}, make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for last := time.Now(); ; {
			select {
			case <-quit:
				return
			case <-time.After(beat):
				now := time.Now()
				p.worst, last = max(p.worst, now.Sub(last)-beat), now
			}
		}
	})
	p.stop = sync.OnceFunc(func() { close(quit); wg.Wait() })
	t.Cleanup(p.stop)
	return p
}

// within checks that an operation took no longer than bound, plus the host's delay.
func (p *pulse) within(t testing.TB, what string, took, bound time.Duration) {
	t.Helper()
	const late = 100 * time.Millisecond
	p.stop()
	t.Logf("%s %v; this machine was late by %v", what, took, p.worst)
	if took > bound && p.worst < late {
		t.Errorf("%s %v, want at most %v", what, took, bound)
	}
}

// calmLoad starts a load that a control plane must not disturb.
func (f *fleet) calmLoad() *harness.Load { f.T.Helper(); return f.newLoad(8, 250, 300, 1000, 4000) }

// envoyHasEpoch returns a condition: an Envoy has the plan of an epoch, or a later one, from a control
// plane.
func envoyHasEpoch(e policies.Epoch) func(control.Status) bool {
	return func(s control.Status) bool { return s.Epoch >= e && envoyHasPlan("edge")(s) }
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

// onlyLoads fails the test if anything but the endpoints' weights was sent, because no plan has
// changed.
func onlyLoads(t *testing.T, what string, sent []string) {
	t.Helper()
	t.Logf("%s: sent %v", what, kinds(sent))
	if n := len(sent) - kinds(sent)["ClusterLoadAssignment"]; n > 0 {
		t.Errorf("%s: %d resources were sent that are not endpoints: %v", what, n, sent)
	}
}

// TestPlannerDies kills the leading control plane, then the other one, then both, under load and
// with a real Envoy: the other one leads within 5 s, has the loads at once, nothing is sent twice,
// and no request fails. Operators' commands work at the leader and at the follower.
func TestPlannerDies(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t)
	f := newFleet(t, setup{envoy: true, replicas: 3, planes: 2})
	a, b := f.planes[0], f.planes[1]
	plans := f.watchPlans()
	a.await("has the Envoy", func(s control.Status) bool { return isLeading(s) && envoyHasPlan("edge")(s) })
	b.await("follows a", isFollowing("a"))
	b.cascade("plan", "pin", llm, "--by", "ann") // the follower executes commands, too
	a.await("pinned", func(s control.Status) bool { return s.Models[0].Pinned != nil })
	a.cascade("plan", "pin", "--undo", llm, "--by", "ben")
	b.await("not pinned", func(s control.Status) bool { return s.Models[0].Pinned == nil })
	if x, y := a.cascade("plan", "history"), b.cascade("plan", "history"); x == "" || x != y {
		t.Errorf("history of a:\n%s\nhistory of b:\n%s", x, y)
	}
	load := f.calmLoad()
	load.WaitForRequests(10)

	before := f.wire.count()
	if before.sent < policies.MaxStages+2 || before.again > 0 {
		t.Fatalf("%d resources were sent at first, %d of them twice", before.sent, before.again)
	}
	heart, at := newPulse(t), time.Now()
	a.process.Kill()
	reached := b.await("has the Envoy", envoyHasPlan("edge"))
	t.Logf("the Envoy is at b after %v", time.Since(at))
	if !hasFreshReports(reached) {
		t.Error("b does not know the loads")
	}
	onlyLoads(t, "failed over from a to b", f.wire.since(t, before))
	heart.within(t, "b has the planning lease after", plans.await("b").Sub(at), takeover)
	if s := b.await("plans", func(s control.Status) bool { return s.Planner.Leads }); !hasFreshReports(s) {
		t.Error("b plans, and does not know the loads")
	}
	if text := b.cascade("status"); !strings.Contains(text, "this control plane, b, plans") {
		t.Errorf("b says: %s", text)
	}
	b.cascade("drain", "r0", "--wait", "--timeout", patience.String())
	e := b.await("the Envoy has the plan without r0", envoyHasEpoch(2)).Epoch

	// The killed control plane restarts as a follower.
	a.start()
	a.await("follows b", isFollowing("b"))
	a.cascade("drain", "--undo", "r0")
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
	before = f.wire.count()
	b.start()
	a.start()
	f.WaitFor("the Envoy is back", func() bool {
		x, _ := a.status()
		y, _ := b.status()
		return envoyHasPlan("edge")(x) || envoyHasPlan("edge")(y)
	})
	onlyLoads(t, "both came back", f.wire.since(t, before))
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

	// The wiretap works: another Envoy, which has nothing yet, receives everything again.
	before = f.wire.count()
	boot := command(t, "envoy-bootstrap", "-c", f.path("edge.yaml"), "--node-id", "edge-2", "--admin", "127.0.0.1:0")
	envoytest.Start(t, envoytest.Config{Bootstrap: boot})
	f.WaitFor("the other Envoy is sent everything", func() bool { return f.wire.count().again-before.again >= policies.MaxStages+2 })
}
