package inprocess

import (
	"fmt"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/xds/control"
)

// drainAndWait drains a replica and waits until no request runs there.
func (r *fleetHarness) drainAndWait(id string) {
	r.T.Helper()
	r.Order("drain", id)
	r.WaitFor(id+" is empty", func() bool { return len(r.fronts[id].LocalLegs()) == 0 })
}

// undrainAndWait undrains a replica and waits until it receives requests.
func (r *fleetHarness) undrainAndWait(id string) {
	r.T.Helper()
	r.Order("undrain", id)
	r.waitForStatus(id+" is back", func(s control.Status) bool {
		n := harness.Find(s, id)
		return n.Weight > 0 && n.Health == "healthy"
	})
}

// drainAndUndrain drains a replica until it is empty, and undrains it.
func (r *fleetHarness) drainAndUndrain(id string) {
	r.T.Helper()
	r.drainAndWait(id)
	r.undrainAndWait(id)
}

// TestDrainChain drains one replica after the other under load, until each of some streams has migrated at least four
// times while its client reads. No client sees an effect.
func TestDrainChain(t *testing.T) {
	for mode, on := range map[string]plane{config.MigrationLive: onEnvoy, config.MigrationReprompt: onProxy} {
		t.Run(mode, func(t *testing.T) {
			planes(t, on, func(t *testing.T, envoy string) {
				r := newMigratingFleet(t, envoy, mode, 3)
				load := r.newLoad(3, 100, 200, 2000, 20_000)
				var streams []*harness.Stream
				for n := range 4 {
					streams = append(streams, r.Stream(prompt(120+n*900, forever)))
				}
				load.WaitForRequests(8)
				migratedOften := func() bool {
					n := 0
					for _, f := range r.fronts {
						f.EachStream(func(s *frontend.Stream) bool {
							if s.Request().MaxOutput == forever && s.Splices() >= 4 {
								n++
							}
							return true
						})
					}
					return n == len(streams)
				}
				for n := 0; n < 3 || !migratedOften(); n++ {
					r.drainAndUndrain(fmt.Sprint("r", n%3))
				}
				r.WaitForGrowth(streams)
				load.Stop()
				load.Report()
				r.RequireTexts(streams)
				r.requireSettled(mode)
			})
		})
	}
}

// TestRollingRestart drains, stops and restarts one engine after the other, under load. No client
// sees an effect.
func TestRollingRestart(t *testing.T) {
	planes(t, onEnvoy, func(t *testing.T, envoy string) { // TestEngineKilled has both
		r := newMigratingFleet(t, envoy, config.MigrationLive, 3)
		load := r.newLoad(3, 100, 200, 2000, 20_000)
		load.WaitForRequests(8)
		for _, id := range []string{"r0", "r1", "r2"} {
			r.drainAndWait(id)
			r.killEngine(id)
			r.WaitFor("the front knows", func() bool { return !r.fronts[id].Status().EngineReady })
			r.startEngine(id)
			r.WaitFor("the front knows", func() bool { return r.fronts[id].Status().EngineReady })
			r.undrainAndWait(id)
			before := r.counts()[id]
			r.WaitFor(id+" serves again", func() bool { return r.counts()[id] > before })
		}
		load.Stop()
		load.Report()
		r.tally()
	})
}
