package inprocess

import (
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/cmd/internal/migratord"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
)

// TestDrain empties the engine of a replica that leaves by itself, as the preStop hook of a Pod
// does, without an order of the control plane. Clients of its front end read on.
func TestDrain(t *testing.T) {
	r := newCheckedFleet(t, harnessConfig{
		replicas: 2,
		edit: func(f *config.Fleet) {
			f.Migration, f.Speed = config.Migration{Mode: config.MigrationReprompt}, 4
		},
		migrator: func(c *migratord.Config) { c.Drain = patience }, // it cuts the streams that this test reads
	})
	leaving := r.fronts["r0"]
	countOwn := func() (own int) {
		leaving.EachStream(func(*frontend.Stream) bool { own++; return true })
		return own
	}
	// A request at the engine of r0 may be one that another front end has placed there, and one of its own clients may run
	// elsewhere.
	var streams []*harness.Stream
	for n := 0; countOwn() == 0 || leaving.Status().Load.Running == 0; n++ {
		streams = append(streams, r.Stream(prompt(120+n, forever)))
	}
	r.daemons["r0"].Drain()
	testkit.WaitFor(t, "the engine of r0 to be empty", func() bool {
		l := leaving.Status().Load
		return l.Running+l.Waiting == 0
	})
	if own := countOwn(); own == 0 || !leaving.Status().Draining {
		t.Errorf("the front end has %d streams, draining %v: want its clients to read on, and no new ones", own, leaving.Status().Draining)
	}
	r.WaitForGrowth(streams)
}
