package inprocess

import (
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/move"
)

// newMigratingFleet returns a fleet whose requests migrate in the given mode.
func newMigratingFleet(t *testing.T, envoy, mode string, replicas int, edits ...func(*config.Fleet)) *fleetHarness {
	return newCheckedFleet(t, harnessConfig{envoy: envoy, replicas: replicas, edit: func(f *config.Fleet) {
		f.Migration = config.Migration{Mode: mode}
		f.Speed = 4
		for _, edit := range edits {
			edit(f)
		}
	}})
}

// newStayingFleet is newMigratingFleet, and each request begins where it arrives: a busy host makes a replica seem slow, and
// placement would give it none.
func newStayingFleet(t *testing.T, envoy string, replicas int) *fleetHarness {
	return newCheckedFleet(t, harnessConfig{envoy: envoy, replicas: replicas, edit: func(f *config.Fleet) {
		f.Migration, f.Speed = config.Migration{Mode: config.MigrationLive}, 4
	}, front: func(_ string, c *frontend.Config) { c.Placer = staysHere{c.Placer} }})
}

// newCheckedFleet returns a fleet whose requests migrate. It checks that nothing is left of them once all
// traffic has stopped.
func newCheckedFleet(t *testing.T, s harnessConfig) *fleetHarness {
	r := newFleetHarness(t, s)
	t.Cleanup(r.waitForIdle)
	return r
}

// migrations returns the completed and failed migrations of the whole fleet, as their sources recorded
// them.
func (r *fleetHarness) migrations() (done, failed []move.Migration) {
	for _, n := range r.replicas {
		for _, m := range n.migrator.Executor().Migrations() {
			switch {
			case m.Role != "source":
			case m.State == "moved":
				done = append(done, m)
			case m.State == "failed":
				failed = append(failed, m)
			}
		}
	}
	return done, failed
}

// migrated reports whether any request has migrated.
func (r *fleetHarness) migrated() bool {
	done, _ := r.migrations()
	return len(done) > 0
}

// tally logs the migrations by cause and path, and returns how many succeeded.
func (r *fleetHarness) tally() int {
	r.T.Helper()
	done, failed := r.migrations()
	by := map[string]int{}
	var stall time.Duration
	for _, m := range done {
		by[m.Cause.String()+" "+m.Mode]++
		stall = max(stall, m.Stall)
	}
	why := map[string]int{}
	for _, m := range failed {
		why[m.Cause.String()+" "+m.Mode+": "+m.Failure]++
	}
	r.T.Logf("migrated: %v, longest stall %v; failed: %v", by, stall, why)
	return len(done)
}
