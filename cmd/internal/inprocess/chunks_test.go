package inprocess

import (
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/engine/emulator"
)

// TestLiveMigrationOfSeveralTokens migrates requests live whose engines send several tokens at
// once: no client sees it, and none waits for tokens that an engine keeps for its next chunk.
func TestLiveMigrationOfSeveralTokens(t *testing.T) {
	for name, faults := range map[string]emulator.Faults{"stream interval": {StreamInterval: 8}, "both": {StreamInterval: 5, DraftTokens: 4}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newCheckedFleet(t, harnessConfig{replicas: 2, engine: func(c *emulator.Config) { c.Faults = faults }, edit: func(f *config.Fleet) {
				f.Migration, f.Speed = config.Migration{Mode: config.MigrationLive}, 4
			}})
			load := r.newLoad(3, 60, 300, 600)
			load.WaitForRequests(4)
			streams := r.startStreamsOn("r0")
			for _, id := range []string{"r0", "r1", "r0"} {
				r.drainAndUndrain(id)
			}
			load.WaitForRequests(4)
			load.Stop()
			load.Report()
			r.WaitForGrowth(streams)
			done, failed := r.migrations()
			by := map[string]int{}
			for _, m := range done {
				by[m.Mode]++
			}
			if by["live"] < 3 || len(by) > 1 {
				t.Errorf("migrated: %v", by)
			}
			for _, m := range failed {
				if m.Failure != "request ended" {
					t.Errorf("%s of %s failed: %s", m.Mode, m.Request, m.Failure)
				}
			}
		})
	}
}
