package inprocess

import (
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/migrator/executor"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
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

// newCheckedFleet returns a fleet whose requests migrate. It checks that nothing is left of them once all
// traffic has stopped.
func newCheckedFleet(t *testing.T, s harnessConfig) *fleetHarness {
	r := newFleetHarness(t, s)
	t.Cleanup(r.waitForIdle)
	return r
}

// order executes an operator's command through the admin port.
func (r *fleetHarness) order(what, replica string) {
	r.t.Helper()
	if err := r.ordered(what, replica); err != nil {
		r.t.Fatal(err)
	}
}

func (r *fleetHarness) ordered(what, replica string) error {
	req, err := http.NewRequest(http.MethodPost, r.AdminURL()+"/"+what+"?replica="+replica, nil)
	if err != nil {
		return err
	}
	req.Header.Set(control.AdminHeader, "1")
	resp, err := r.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s: %s", what, replica, resp.Status, body)
	}
	return nil
}

// moves returns the completed and failed migrations of the whole fleet, as their sources recorded
// them.
func (r *fleetHarness) moves() (done, failed []executor.Migration) {
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

// moved reports whether any request has migrated.
func (r *fleetHarness) moved() bool {
	done, _ := r.moves()
	return len(done) > 0
}

// tally logs the migrations by cause and path, and returns how many succeeded.
func (r *fleetHarness) tally() int {
	r.t.Helper()
	done, failed := r.moves()
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
	r.t.Logf("moved: %v, longest stall %v; failed: %v", by, stall, why)
	return len(done)
}

// TestGrowthMoves checks that requests that outgrow their stage continue in the next ones, up to
// the last of five.
func TestGrowthMoves(t *testing.T) {
	idlePlanes(t, onProxy, func(t *testing.T, envoy string) {
		r := newMigratingFleet(t, envoy, config.MigrationLive, 5)
		load := newTraffic(r, 6, 600, 300, 1000)
		r.plan(stages([]policies.Tokens{200, 350, 500, 700}, ids(0), ids(1), ids(2), ids(3), ids(4))...)
		grown := []*live{r.stream(prompt(300, forever))}
		load.waitForRequests(18)
		r.waitFor("something has moved", r.moved)
		r.waitForGrowth(grown)
		load.stop()
		load.report()
		load.requireTexts(grown)
		r.tally()
	})
}
