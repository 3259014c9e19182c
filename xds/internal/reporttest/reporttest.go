// Package reporttest has load reports for tests.
package reporttest

import (
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// Started is when the migrations began.
var Started = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// Migration returns a migration that replica r0 began.
func Migration(n int, state string) *api.Migration {
	return &api.Migration{
		Id: fmt.Sprint("r0/", n), Request: "r2/1", Cause: "growth", FrontEnd: "r2", From: "r0", To: "r1", Method: "live", Transport: "shm",
		State: state, Rounds: 2, Tokens: 700, Bytes: 1 << 20, StallSeconds: 0.0012, Seconds: 0.5, StartedUnixMicros: Started.UnixMicro(),
	}
}

// Route returns a route to replica r1.
func Route(transport, state string) *api.Route {
	return &api.Route{Transport: transport, Peer: "r1", State: state, Reason: "no such directory", BytesPerSecond: 1e9, Path: "one switch"}
}

// Report returns a report of replica r0 that loadreport.Decode accepts as it is.
func Report() *api.LoadReport {
	return &api.LoadReport{
		Replica: "r0", Model: "m", Sequence: 3, EngineReady: true, BytesPerToken: 4.2, EstimateError: 0.1,
		Load: &api.Load{Running: 3, Waiting: 1, HeldTokens: 4000, PromisedTokens: 100, IterationSeconds: 0.02},
		Flow: &api.Flow{
			Edges: []int64{0, 16, 32}, Arrivals: []float64{1, 2, 3}, Tokens: []float64{10, 20, 30}, Reads: []float64{1, 2, 3},
			Prefill: []float64{1, 2, 3}, Prefill2: []float64{1, 2, 3}, Weight: []float64{.1, .2, .3}, Crossings: []float64{0, 1, 1}, Seen: 77,
		},
		Snapshot: []*api.Batch{{N: 1, SumInput: 5, SumInput2: 25, SumLength: 9}, {}, {}},
	}
}

// Seeds returns reports from which a fuzz test begins.
func Seeds() []*api.LoadReport {
	outOfBounds, full := Report(), Report()
	outOfBounds.Load.HeldTokens, outOfBounds.Flow.Tokens[0] = loadreport.MaxTokens, loadreport.MaxRate
	full.Migrations, full.Proposal, full.Residents = []*api.Migration{Migration(1, loadreport.MigrationDone)}, &api.Proposal{Epoch: 1, Boundary: 9}, 3
	full.Routes = []*api.Route{Route("shm", loadreport.RouteBroken)}
	full.Topology = loadreport.EncodeTopology(links.Topology{Host: "a", Known: true, GPU: &links.GPU{UUID: "u", Peers: []links.Peer{{Index: 1, Read: true}}}, RDMA: &links.Port{Name: "mlx5_0"}})
	return []*api.LoadReport{Report(), {}, outOfBounds, full}
}
