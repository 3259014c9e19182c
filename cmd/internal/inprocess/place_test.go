package inprocess

import (
	"bytes"
	"net/http"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// TestPlaceOnly checks a fleet whose requests are placed and do not migrate: a front end whose engine
// has a full batch starts a short request on its peer, a drained replica keeps its stream, and a stream whose
// engine is lost continues on the peer.
func TestPlaceOnly(t *testing.T) {
	planes(t, onProxy, func(t *testing.T, envoy string) {
		r := newMigratingFleet(t, envoy, config.MigrationPlace, 2, func(f *config.Fleet) {
			f.Models[0].Batch, f.Overload.Admission = 1, config.AdmissionOff
		})
		placesOn := func(id policies.ReplicaID) func() bool {
			return func() bool {
				return r.daemons["r0"].Market().Place(policies.Request{ID: "probe", Model: llm, Input: 20, MaxOutput: 4}, nil).Replica == id
			}
		}
		r.WaitFor("r0 knows that its engine is ready", placesOn(""))
		front := "http://" + r.replica("r0").Address
		streams := []*harness.Stream{r.Start(front, prompt(200, forever))}
		r.WaitForGrowth(streams)
		for try := 1; len(r.fronts["r0"].LocalLegs()) == 0; try++ { // placement may have chosen r1
			if try == 8 {
				t.Fatalf("none of %d streams runs on r0, their front end's replica", try)
			}
			streams[0].Leave()
			r.waitForIdle()
			streams[0] = r.Start(front, prompt(200, forever))
			r.WaitForGrowth(streams)
		}
		r.WaitFor("r0 with its full batch places a request on r1", placesOn("r1"))
		resp, err := r.HTTP.Post(front+"/v1/completions", "application/json", bytes.NewReader(prompt(100, 4)))
		testkit.NoError(t, err)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("the second request: %s", resp.Status)
		}

		r.Order("drain", "r0")
		r.WaitFor("r0 while it drains places a request on r1", placesOn("r1"))
		r.WaitForEvents(streams, 100)
		if here, started := len(r.fronts["r0"].LocalLegs()), len(r.daemons["r0"].Executor().Migrations()); here != 1 || started > 0 {
			t.Errorf("the drained replica has %d requests and started %d migrations, want its stream and none", here, started)
		}

		r.killEngine("r0")
		r.WaitFor("the stream of the lost engine is on r1", func() bool { return len(r.fronts["r1"].LocalLegs()) == 1 })
		r.WaitForGrowth(streams)
		r.RequireTexts(streams)
	})
}
