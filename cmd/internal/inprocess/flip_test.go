package inprocess

import (
	"os"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/policies"
)

// everything makes slow tests run in full, as "make test-all" does.
var everything = os.Getenv("CASCADE_TEST_ALL") != ""

// TestFlips moves boundaries and changes replicas' stages as fast as the data plane acknowledges,
// under requests of mixed size, plain and streamed. No request fails, the stage that the request's
// epoch assigns serves it, and a running stream stays where it is. Package xds/proxy has its own TestFlips.
func TestFlips(t *testing.T) {
	flips, moves := 24, 8
	if everything {
		flips, moves = 5000, 100
	}
	planes(t, onEnvoy, func(t *testing.T, envoy string) {
		r := newFleetHarness(t, harnessConfig{envoy: envoy, replicas: 6, edit: func(f *config.Fleet) { f.Speed = 1 }})
		set := func(cut policies.Tokens, short int) {
			p := policies.Plan{Model: llm, Stages: stages([]policies.Tokens{cut, 4000}, ids(0, 1, 2, 3, 4)[:short], ids(0, 1, 2, 3, 4)[short:], ids(5))}
			p.Epoch = r.object.Epoch + 1
			r.expect(p)
			if got := r.plan(p.Stages...); got.Epoch != p.Epoch {
				t.Fatalf("stored as epoch %d, want %d: another process plans", got.Epoch, p.Epoch)
			}
		}
		r.plan(stages([]policies.Tokens{500, 4000}, ids(0, 1, 2), ids(3, 4), ids(5))...)

		// Streams on every stage continue from before the first flip until after the last.
		before := r.counts()
		var long []*harness.Stream
		for i := range 6 {
			long = append(long, r.Stream(prompt([]int{300, 8000, 40_000}[i%3]+i, forever)))
		}
		who := r.countsSince(before)
		load := r.newLoad(3, 2, 100, 100, 200, 200, 500, 500, 1000, 1000, 1900, 1900, 2100, 2100, 3000, 3000, 5000, 5000, 8000, 8000, 11_000, 15_900, 16_100, 220<<10)
		load.WaitForRequests(20)
		for i := range flips {
			// The boundary crosses the sizes of the requests; every other plan also moves a
			// replica.
			set(policies.Tokens(20+(i*37)%3000), 1+(i*moves/flips)%4)
		}
		load.WaitForRequests(20)
		load.Stop()
		load.Report()

		// The streams have not migrated: each front end has as many as before.
		for id, n := range who {
			if running := r.fronts[id].Status().Load; int64(running.Running+running.Waiting) != n {
				t.Errorf("%s had %d streams and now runs %d", id, n, running.Running+running.Waiting)
			}
		}
		r.WaitForGrowth(long)
		r.RequireTexts(long)
		t.Logf("%d flips and %d moves while %d streams continued", flips, moves, len(long))
	})
}
