package inprocess

import (
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
)

// startScattered starts long streams on all front ends and drains replicas until some streams of the
// first front end run elsewhere, and some streams of the others run on the first replica. It
// returns the streams by front end.
func (r *fleetHarness) startScattered() map[string][]*live {
	r.t.Helper()
	out := make(map[string][]*live)
	for n := 0; len(out["r0"]) < 3 || len(out["r1"]) < 3 || len(out["r2"]) < 2; n++ {
		before := r.counts()
		s := r.stream(prompt(120+n, forever))
		for id := range r.countsSince(before) {
			out[id] = append(out[id], s)
		}
	}
	for {
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
		switch {
		case lent < 2:
			r.drainAndWait("r0")
			r.undrainAndWait("r0")
		case borrowed < 2:
			r.drainAndWait("r1")
			r.undrainAndWait("r1")
		default:
			r.t.Logf("r0 has lent %d streams and borrowed %d", lent, borrowed)
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

// TestMigratorDies kills a migrator whose engine runs requests of other front ends, and whose own
// clients' requests run elsewhere. The connections of its clients are cut and their requests end;
// the requests of other front ends continue.
func TestMigratorDies(t *testing.T) {
	idlePlanes(t, onEnvoy, func(t *testing.T, envoy string) {
		r := newMigratingFleet(t, envoy, config.MigrationLive, 3)
		r.teachShapes()
		streams := r.startScattered()
		load := newTraffic(r, 4, 60, 200, 2000)
		load.waitForRequests(8)
		load.killDuring(func() { r.killFront("r0") }, func(error) bool { return true })
		for _, s := range streams["r0"] {
			s.wait(t)
			if s.done {
				t.Error("a stream of the dead front ended as if it were whole")
			}
		}
		r.waitFor("nothing runs for its clients", func() bool { return r.foreignLegs("r1", "r0")+r.foreignLegs("r2", "r0") == 0 })
		r.waitFor("its engine is idle", func() bool { return r.engineWork("r0") == "" })
		r.waitForGrowth(streams["r1"])
		r.waitForGrowth(streams["r2"])
		load.waitForRequests(12)
		before := r.counts()["r0"]
		r.startFront("r0")
		r.waitFor("r0 serves again", func() bool { return r.counts()["r0"] > before })
		load.waitForRequests(12)
		load.stop()
		load.report()
		r.waitForGrowth(streams["r1"])
		r.waitForGrowth(streams["r2"])
		load.requireTexts(streams["r1"])
		load.requireTexts(streams["r2"])
		r.tally()
	})
}
