package inprocess

import (
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/xds/control"
)

// drainAndWait drains a replica and waits until no request runs there.
func (r *fleetHarness) drainAndWait(id string) {
	r.t.Helper()
	r.order("drain", id)
	r.waitFor(id+" is empty", func() bool { return len(r.fronts[id].LocalLegs()) == 0 })
}

// undrainAndWait undrains a replica and waits until it receives requests.
func (r *fleetHarness) undrainAndWait(id string) {
	r.t.Helper()
	r.order("undrain", id)
	r.waitForStatus(id+" is back", func(s control.Status) bool {
		for _, m := range s.Models {
			for _, st := range m.Stages {
				for _, n := range st.Replicas {
					if string(n.ID) == id {
						return n.Weight > 0 && n.Health == "healthy"
					}
				}
			}
		}
		return false
	})
}

// TestDrainMoves drains one replica after the other under load; the running requests continue
// elsewhere, and no client sees an effect.
func TestDrainMoves(t *testing.T) {
	for _, mode := range []string{config.MigrationLive, config.MigrationReprompt} {
		t.Run(mode, func(t *testing.T) {
			idlePlanes(t, onBoth, func(t *testing.T, envoy string) {
				r := newMigratingFleet(t, envoy, mode, 3, func(f *config.Fleet) { f.Speed = 2 })
				load := newTraffic(r, 4, 200, 200, 2000, 20_000)
				// If the host is busy, the load's answers end before they migrate.
				var streams []*live
				for n := range 3 {
					streams = append(streams, r.stream(prompt(120+n*900, forever)))
				}
				load.waitForRequests(12)
				for _, id := range []string{"r0", "r1", "r2"} {
					r.drainAndWait(id)
					r.undrainAndWait(id)
				}
				load.stop()
				load.report()
				r.waitForGrowth(streams)
				load.requireTexts(streams)
				if r.tally() == 0 {
					t.Error("nothing moved")
				}
			})
		})
	}
}

// TestRollingRestart drains, stops and restarts one engine after the other, under load. No client
// sees an effect.
func TestRollingRestart(t *testing.T) {
	idlePlanes(t, onBoth, func(t *testing.T, envoy string) {
		r := newMigratingFleet(t, envoy, config.MigrationLive, 3)
		load := newTraffic(r, 4, 300, 200, 2000, 20_000)
		load.waitForRequests(8)
		for _, id := range []string{"r0", "r1", "r2"} {
			r.drainAndWait(id)
			r.killEngine(id)
			r.waitFor("the front knows", func() bool { return !r.fronts[id].Status().EngineReady })
			r.startEngine(id)
			r.waitFor("the front knows", func() bool { return r.fronts[id].Status().EngineReady })
			r.undrainAndWait(id)
			before := r.counts()[id]
			r.waitFor(id+" serves again", func() bool { return r.counts()[id] > before })
		}
		load.stop()
		load.report()
		r.tally()
	})
}
