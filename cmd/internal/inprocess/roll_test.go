package inprocess

import (
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
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
