package inprocess

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

// prefillMoves counts the requests that have left prefill replicas with their first tokens, and those that
// reached the replica of their front end.
func (r *fleetHarness) prefillMoves() (all, home int) {
	done, _ := r.migrations()
	for _, m := range done {
		if m.Cause != policies.Prefill {
			continue
		}
		if all++; m.FrontEnd == m.To {
			home++
		}
	}
	return all, home
}

// drainPrefillReplica drains r0 until it is empty, and undrains it after more requests.
func (r *fleetHarness) drainPrefillReplica(load *harness.Load) {
	r.T.Helper()
	r.Order("drain", "r0")
	r.waitForStatus("the prefill replica is empty", func(s control.Status) bool {
		n := harness.Find(s, "r0")
		return len(n.Drain) > 0 && n.Running+n.Waiting+n.Residents == 0
	})
	load.WaitForRequests(6)
	r.Order("undrain", "r0")
}

// newPrefillLoad starts a load of long prompts, which differ, with answers of so many tokens or a few more, and of
// short prompts.
func (r *fleetHarness) newPrefillLoad(workers, output int) *harness.Load {
	var number atomic.Int64
	return r.NewLoad(harness.LoadConfig{Workers: workers, Streamed: func(n int) bool { return n%4 != 0 }, Body: func(worker int, rng *rand.Rand) []byte {
		if worker%3 == 2 {
			return harness.Prompt(0, 100+100*rng.IntN(4), 30)
		}
		return harness.Prompt(int(number.Add(1)), 12_000+1000*rng.IntN(8), output+rng.IntN(30))
	}})
}

// TestPrefillReplica runs a fleet with a prefill replica. Long prompts are computed there, and the requests move to
// the replica of their front end; short ones never go there. Every client reads what one engine would answer. When
// the prefill replica is lost, comes back, drains, and when all others are lost, no request fails.
func TestPrefillReplica(t *testing.T) {
	planes(t, onProxy, func(t *testing.T, envoy string) {
		r := newMigratingFleet(t, envoy, config.MigrationLive, 3, func(f *config.Fleet) { f.Replicas[0].Role = config.RolePrefill })
		s := r.waitForStatus("the plan has the other replicas", func(s control.Status) bool { return len(s.Models[0].Stages[0].Replicas) == 2 })
		if u := s.Models[0].Unassigned; len(u) != 1 || u[0].ID != "r0" || u[0].Role != "prefill" {
			t.Errorf("in no stage: %+v, want r0, the prefill replica", u)
		}
		r.teachShapes()
		clients := r.counts()
		load := r.newPrefillLoad(3, 60)
		moved := func(more int) func() bool {
			before, _ := r.prefillMoves()
			return func() bool { all, _ := r.prefillMoves(); return all >= before+more }
		}
		r.WaitFor("requests move with their first token", moved(6))
		if all, home := r.prefillMoves(); home < all {
			t.Errorf("%d of %d went to the replica of their front end, which had room", home, all)
		}
		if n := r.countsSince(clients)["r0"]; n > 0 {
			t.Errorf("clients reached the prefill replica %d times", n)
		}
		for _, leg := range r.fronts["r0"].LocalLegs() {
			if leg.Request.Input < 1024 && !leg.Request.Estimated {
				t.Errorf("a prompt of %d tokens is at the prefill replica", leg.Request.Input)
			}
		}

		r.killEngine("r0")
		r.WaitFor("the loss is noticed", func() bool { return !r.fronts["r0"].Status().EngineReady })
		load.WaitForAll()
		load.WaitForRequests(6)
		r.startEngine("r0")
		r.WaitFor("requests move again", moved(4))

		r.drainPrefillReplica(load)
		r.WaitFor("requests move again", moved(4))

		r.Order("drain", "r1")
		r.WaitFor("requests move to the other replica", moved(4))
		r.Order("undrain", "r1")

		// Clients leave while their prompts are computed, while they move, and after it.
		for i := range 12 {
			s := r.Start(r.DataPlane, harness.Prompt(10_000+i, 15_000, forever))
			if i%3 > 0 {
				r.WaitFor("it begins", func() bool { return s.Count() > int64(i) })
			}
			s.Leave()
		}
		load.Stop()
		load.Report()
		r.tally()
	})
}

// prefills sums up what became of the prompts that the prefill replica, r0, should compute for the other engines.
func (r *fleetHarness) prefills() (fetched uint64, failed map[string]uint64) {
	failed = map[string]uint64{}
	for id, f := range r.fronts {
		n := f.Prefills()
		fetched += n.Pulled
		for reason, count := range n.Failed {
			failed[reason] += count
		}
		if id == "r0" && n.Pulled+uint64(len(n.Failed)) > 0 {
			r.T.Errorf("the prefill replica has fetched prompts: %+v", n)
		}
	}
	return fetched, failed
}

// TestPrefillReplicaHandsOver is TestPrefillReplica for engines without block tables: the other engines fetch the KV
// of the prompts that the prefill replica computes, before the requests begin. While that replica fails for a moment,
// in every way, no request fails.
func TestPrefillReplicaHandsOver(t *testing.T) {
	t.Parallel()
	r := newCheckedFleet(t, harnessConfig{replicas: 3, handOver: true, edit: func(f *config.Fleet) {
		f.Migration, f.Speed = config.Migration{}, 4
		f.Replicas[0].Role = config.RolePrefill
	}})
	r.teachShapes()
	load := r.newPrefillLoad(4, 60)
	fetched := func(more uint64) func() bool {
		before, _ := r.prefills()
		return func() bool { all, _ := r.prefills(); return all >= before+more }
	}
	r.WaitFor("prompts are fetched", fetched(6))

	r.killEngine("r0")
	load.WaitForRequests(6)
	r.startEngine("r0")
	r.WaitFor("prompts are fetched again", fetched(3))

	r.killFront("r0")
	load.WaitForRequests(6)
	r.startFront("r0")
	r.WaitFor("prompts are fetched again", fetched(3))

	r.drainPrefillReplica(load)
	r.WaitFor("prompts are fetched again", fetched(3))

	load.Stop()
	load.Report()
	all, failed := r.prefills()
	t.Logf("%d prompts were fetched, and not: %v", all, failed)
	done, _ := r.migrations()
	for _, m := range done {
		if m.Cause == policies.Prefill && m.Mode != "handoff" { // where the ids of a prompt did not come in time
			t.Errorf("a request left the prefill replica by %s", m.Mode)
		}
	}
}

// TestPrefillReplicaIsLastResort loses all engines but that of the prefill replica, which then serves everything.
func TestPrefillReplicaIsLastResort(t *testing.T) {
	planes(t, onEnvoy, func(t *testing.T, envoy string) {
		r := newMigratingFleet(t, envoy, config.MigrationLive, 3, func(f *config.Fleet) { f.Replicas[0].Role = config.RolePrefill })
		for _, id := range []string{"r1", "r2"} {
			r.WaitFor(id+" knows the others' loads", func() bool { return r.daemons[id].Market().Status().FreshPeers == 2 })
		}
		var streams []*harness.Stream
		someMove := func() bool { all, _ := r.prefillMoves(); return all >= 2 }
		// On a slow machine a front end may have no recent load of the prefill replica, and compute a prompt itself.
		for i := 0; i < 4 || i < 12 && !someMove(); i++ {
			streams = append(streams, r.Stream(harness.Prompt(i+1, 12_000, forever)))
		}
		r.WaitFor("some move", someMove)
		r.killEngine("r1", "r2")
		r.WaitForGrowth(streams)
		r.WaitFor("the losses are noticed", func() bool { return !r.fronts["r1"].Status().EngineReady && !r.fronts["r2"].Status().EngineReady })
		load := r.newPrefillLoad(3, 60)
		load.WaitForRequests(9)
		if n := r.counts()["r0"]; n == 0 {
			t.Error("no client reached the prefill replica")
		}
		r.startEngine("r1")
		before, _ := r.prefillMoves()
		r.WaitFor(fmt.Sprint("streams leave it again, after ", before), func() bool { all, _ := r.prefillMoves(); return all >= before+2 })
		r.WaitForGrowth(streams)
		load.Stop()
		load.Report()
		r.RequireTexts(streams)
		r.startEngine("r2")
		r.tally()
	})
}
