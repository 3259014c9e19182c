package inprocess

import (
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/cmd/internal/migratord"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	"github.com/cascadeinfer/cascade/migrator/device/verbs"
	"github.com/cascadeinfer/cascade/xds/control"
)

// TestRDMA runs a fleet whose replicas have an RDMA device and no shared memory. The fleet reports
// the device, migrates its requests over it, and answers byte for byte like a fleet without
// migrations. When the device loses its cable, requests migrate over TCP.
func TestRDMA(t *testing.T) {
	t.Parallel()
	path := fake.Verbs(t)
	cable := fake.Open(t, path)
	lib, err := verbs.Open(path)
	fake.RequireOpened(t, err)
	list := script(t, 10, 1, time.Second)
	var want []string
	t.Run("still", func(t *testing.T) {
		want = newFleetHarness(t, harnessConfig{replicas: 3, edit: func(f *config.Fleet) { f.Speed = 50 }}).play(list)
	})
	t.Run("fleet", func(t *testing.T) {
		r := newCheckedFleet(t, harnessConfig{
			replicas: 3, migrator: func(c *migratord.Config) { c.RDMA, c.Runtime = lib, "" },
			edit: func(f *config.Fleet) { f.Migration, f.Speed = config.Migration{Mode: config.MigrationLive}, 2 },
		})
		r.teachShapes()
		r.waitForStatus("verbs is each replica's best transport", func(s control.Status) bool { return prefersTransport(s, "verbs") })
		round := 0
		// over plays the script until requests have migrated by a transport.
		over := func(transport string) {
			migrated := 0
			for tries := 0; tries == 0 || tries < 10 && migrated == 0; tries++ {
				stop := r.rotateDrains("r0", "r1", "r2")
				got := r.play(saltQuestions(list, round))
				stop()
				round++
				// On a busy machine a request may also move by re-prompting: then nothing is known of its cached tokens.
				compare(t, list, got, want, config.MigrationReprompt)
				done, _ := r.migrations()
				for _, m := range done {
					if m.Mode == "live" && m.Transport == transport {
						migrated++
					}
				}
			}
			if t.Logf("%d requests have migrated over %s", migrated, transport); migrated == 0 {
				_, failed := r.migrations()
				t.Errorf("no request migrates over %s: %+v", transport, failed)
			}
		}
		over("verbs")
		cable.Set("fake_unplug", 0)
		defer cable.Set("fake_mend", 0)
		over("tcp")
	})
	if n := lib.OpenResources(); n != (verbs.Resources{}) || cable.Live("") != 0 {
		t.Errorf("%+v and %d handles of the device are left", n, cable.Live(""))
	}
}

// prefersTransport reports whether every replica prefers a transport, and the transport works.
func prefersTransport(s control.Status, transport string) bool {
	return !slices.ContainsFunc(harness.Replicas(s), func(n control.Replica) bool {
		return len(n.Transports) == 0 || n.Transports[0].Name != transport || n.Transports[0].State != "ready"
	})
}
