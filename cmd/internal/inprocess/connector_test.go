package inprocess

import (
	"fmt"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/migrator/frontend"
)

// pulls counts the pulls by a transport.
func (r *fleetHarness) pulls(transport string) (n int) {
	for _, d := range r.daemons {
		for _, p := range d.TransportPaths() {
			if p.Peer != "" && p.Transport == transport {
				n += p.Pulls
			}
		}
	}
	return n
}

// TestConnector runs engines with Cascade's connector: requests migrate by handoff, and their KV goes
// from one engine's process to the other's through shared memory. So it does after an engine was
// killed and started again.
func TestConnector(t *testing.T) {
	t.Parallel()
	r := newCheckedFleet(t, harnessConfig{replicas: 2, handOver: true, front: func(_ string, c *frontend.Config) {
		c.MigrationTimeout = time.Minute // on a busy host, too, handoffs are in time
	}, edit: func(f *config.Fleet) {
		f.Migration, f.Speed = config.Migration{Mode: config.MigrationLive}, 4
	}})
	connected := func() bool {
		for _, f := range r.fronts {
			if c, _ := f.KVConnector(); f.Status().EngineReady && c.Layout == "" {
				return false
			}
		}
		return true
	}
	r.WaitFor("the connectors are available", connected)
	var streams []*harness.Stream
	for n := range 3 {
		streams = append(streams, r.Stream(prompt(200+n*3000, forever)))
	}
	r.WaitForGrowth(streams)
	// A holder that a busy host does not run for a second is re-prompted from: the others' KV is fetched.
	handoffs := func() (n int) {
		done, _ := r.migrations()
		for _, m := range done {
			if m.Mode == "handoff" {
				n++
			}
		}
		return n
	}
	const enough, rounds = 6, 20
	for n := 0; n < 3 || handoffs() < enough && n < rounds; n++ {
		r.drainAndUndrain(fmt.Sprint("r", n%2))
	}
	if n := handoffs(); n < enough {
		t.Errorf("%d requests migrated by handoff", n)
	}
	r.tally()
	before := r.pulls("shm")
	if before < 3 {
		t.Errorf("%d pulls through shared memory", before)
	}
	r.killEngine("r1")
	r.WaitFor("the front end has noticed", func() bool { return !r.fronts["r1"].Status().EngineReady }) // or the drain below may be too early
	r.startEngine("r1")
	r.WaitFor("the engine is back", func() bool { return r.fronts["r1"].Status().EngineReady && connected() })
	r.waitForStatus("r1 takes requests", allHealthy)
	for n := 0; n < 2 || r.pulls("shm") == before && n < rounds; n++ { // they are at either of the two now
		r.drainAndUndrain(fmt.Sprint("r", n%2))
	}
	r.WaitForGrowth(streams)
	r.RequireTexts(streams)
	if r.pulls("shm") == before {
		t.Error("no KV goes to or from the engine that was started again")
	}
}
