package inprocess

import (
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies/testkit"
)

// TestLeave empties the engine of a replica that leaves by itself, as the preStop hook of a Pod
// does, without an order of the control plane. Clients of its front end read on.
func TestLeave(t *testing.T) {
	r := newMigratingFleet(t, "", config.MigrationReprompt, 2)
	streams := r.startStreamsOn("r0")
	leaving := r.fronts["r0"]
	r.daemons["r0"].Leave()
	testkit.WaitFor(t, "the engine of r0 to be empty", func() bool {
		l := leaving.Status().Load
		return l.Running+l.Waiting == 0
	})
	own := 0
	leaving.EachStream(func(*frontend.Stream) bool { own++; return true })
	if own == 0 || !leaving.Status().Draining {
		t.Errorf("the front end has %d streams, draining %v: want its clients to read on, and no new ones", own, leaving.Status().Draining)
	}
	r.WaitForGrowth(streams)
}
