package inprocess

import (
	"bytes"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// placesWhen places requests once it is enabled, and leaves them where they arrive before.
type placesWhen struct {
	frontend.Placer
	enabled *atomic.Bool
}

// Place implements frontend.Placer.
func (p placesWhen) Place(r policies.Request, steps []prefix.Step) policies.Target {
	if !p.enabled.Load() {
		return policies.Target{}
	}
	return p.Placer.Place(r, steps)
}

// TestPlaceOnly checks a fleet whose requests are placed and do not migrate: a front end whose engine
// has a full batch starts a short request on its peer, a drained replica keeps its stream, and a stream whose
// engine is lost continues on the peer.
func TestPlaceOnly(t *testing.T) {
	planes(t, onProxy, func(t *testing.T, envoy string) {
		var placing atomic.Bool // until then requests stay where they arrive: the stream below begins on r0
		r := newCheckedFleet(t, harnessConfig{envoy: envoy, replicas: 2, edit: func(f *config.Fleet) {
			f.Migration, f.Speed = config.Migration{Mode: config.MigrationPlace}, 4
			f.Models[0].Batch, f.Overload.Admission = 1, config.AdmissionOff
		}, front: func(_ string, c *frontend.Config) { c.Placer = placesWhen{c.Placer, &placing} }})
		placesOn := func(id policies.ReplicaID) func() bool {
			return func() bool {
				return r.daemons["r0"].Market().Place(policies.Request{ID: "probe", Model: llm, Input: 20, MaxOutput: 4}, nil).Replica == id
			}
		}
		front := "http://" + r.replica("r0").Address
		streams := []*harness.Stream{r.Start(front, prompt(200, forever))}
		r.WaitForGrowth(streams)
		placing.Store(true)
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
