package inprocess

import (
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

// startScattered starts long streams on all front ends and drains replicas so that some streams of the
// first front end run elsewhere, and some streams of the others run on the first replica. It
// returns the streams by front end.
func (r *fleetHarness) startScattered() map[string][]*harness.Stream {
	r.T.Helper()
	out := make(map[string][]*harness.Stream)
	start := func(n int) {
		before := r.counts()
		s := r.Stream(prompt(120+n, forever))
		for id := range r.countsSince(before) {
			out[id] = append(out[id], s)
		}
	}
	n := 0
	for ; len(out["r0"]) < 2 || len(out["r2"]) < 1; n++ {
		start(n)
	}
	for {
		// All streams run on r2. Those that begin on r1 then go to r0, which runs none.
		r.drainAndWait("r0")
		r.drainAndWait("r1")
		r.Order("undrain", "r0")
		r.undrainAndWait("r1")
		r.undrainAndWait("r0")
		for more := len(out["r1"]) + 2; len(out["r1"]) < more; n++ {
			start(n)
		}
		r.drainAndUndrain("r1")
		lent, borrowed := 0, 0
		for id := range r.fronts {
			for holder, n := range r.streamsByHolder(id) {
				switch {
				case id == "r0" && holder != "r0":
					lent += n
				case id != "r0" && holder == "r0":
					borrowed += n
				}
			}
		}
		if r.T.Logf("r0 has lent %d streams and borrowed %d", lent, borrowed); lent >= 2 && borrowed >= 2 {
			return out
		}
	}
}

// streamsByHolder counts the streams of a front end by the replica that holds them.
func (r *fleetHarness) streamsByHolder(front string) map[policies.ReplicaID]int {
	out := make(map[policies.ReplicaID]int)
	r.fronts[front].EachStream(func(s *frontend.Stream) bool {
		if h, ok := r.fronts[front].Holder(s.Request().ID); ok && !h.Pending {
			out[h.Replica]++
		}
		return true
	})
	return out
}

// foreignLegs counts the requests on a replica's engine that belong to another front end's clients.
func (r *fleetHarness) foreignLegs(at, front string) (n int) {
	for _, q := range r.fronts[at].LocalLegs() {
		if q.FrontEnd == policies.ReplicaID(front) {
			n++
		}
	}
	return n
}

// TestMigratorKilled kills a migrator whose engine runs requests of other front ends, and whose own
// clients' requests run elsewhere. The connections of its clients are cut and their requests end;
// the requests of other front ends continue.
func TestMigratorKilled(t *testing.T) {
	planes(t, onEnvoy, func(t *testing.T, envoy string) {
		r := newStayingFleet(t, envoy, 3)
		r.teachShapes()
		streams := r.startScattered()
		load := r.newLoad(3, 60, 200, 2000)
		load.WaitForRequests(8)
		load.KillDuring(func() { r.killFront("r0") }, func(error) bool { return true })
		for _, s := range streams["r0"] {
			s.Wait()
			if s.Done {
				t.Error("a stream of the dead front ended as if it were whole")
			}
		}
		r.WaitFor("nothing runs for its clients", func() bool { return r.foreignLegs("r1", "r0")+r.foreignLegs("r2", "r0") == 0 })
		r.WaitFor("its engine is idle", func() bool { return r.engineWork("r0") == "" })
		r.WaitForGrowth(streams["r1"])
		r.WaitForGrowth(streams["r2"])
		load.WaitForRequests(12)
		before := r.counts()["r0"]
		r.startFront("r0")
		r.WaitFor("r0 serves again", func() bool { return r.counts()["r0"] > before })
		r.waitForStatus("r0 is reported as healthy", func(s control.Status) bool { return harness.Find(s, "r0").Health == "healthy" })
		load.WaitForRequests(12)
		load.Stop()
		load.Report()
		r.WaitForGrowth(streams["r1"])
		r.WaitForGrowth(streams["r2"])
		r.RequireTexts(streams["r1"])
		r.RequireTexts(streams["r2"])
		r.tally()
	})
}
