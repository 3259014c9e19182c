package fleet

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/internal/migrationlog"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/topology"
)

func goodMigration(n int, state string) *api.Migration {
	return &api.Migration{
		Id: fmt.Sprint("r0/", n), Request: "r2/1", Cause: "growth", FrontEnd: "r2", From: "r0", To: "r1", Method: "live", Transport: "shm",
		State: state, Rounds: 2, Tokens: 700, Bytes: 1 << 20, StallSeconds: 0.0012, Seconds: 0.5, StartedUnixMicros: start.UnixMicro(),
	}
}

// goodReport returns a message that loadreport.Decode accepts.
func goodReport() *api.LoadReport {
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

// FuzzReport checks that bytes from the network are either refused, or decoded to a
// report from which a State makes valid plans and weights.
func FuzzReport(f *testing.F) {
	seed := func(m *api.LoadReport) {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	seed(goodReport())
	seed(&api.LoadReport{})
	outOfBounds := goodReport()
	outOfBounds.Load.HeldTokens = loadreport.MaxTokens
	outOfBounds.Flow.Tokens[0] = loadreport.MaxRate
	seed(outOfBounds)
	full := goodReport()
	full.Migrations, full.Proposal, full.Residents = []*api.Migration{goodMigration(1, loadreport.MigrationDone)}, &api.Proposal{Epoch: 1, Boundary: 9}, 3
	full.Routes = []*api.Route{{Transport: "shm", Peer: "r1", State: loadreport.RouteBroken}}
	full.Site = topology.Encode(links.Topology{Host: "a", Known: true, GPU: &links.GPU{UUID: "u", Peers: []links.Peer{{Index: 1, Read: true}}}, RDMA: &links.Port{Name: "mlx5_0"}})
	seed(full)
	f.Fuzz(func(t *testing.T, data []byte) {
		m := new(api.LoadReport)
		if proto.Unmarshal(data, m) != nil {
			return
		}
		r, err := loadreport.Decode(m)
		if err != nil {
			return
		}
		var log migrationlog.Log
		log.Add(start, r.Migrations)
		if n := len(log.Newest(time.Time{}, 1000)); n > loadreport.MaxMigrations {
			t.Errorf("%d migrations of one report", n)
		}
		s := stagedWithLinks(t)
		r.Replica, r.Model = "r0", "m"
		now := start
		for range 3 {
			now = now.Add(s.rules.Period)
			settleState(s, now, Reported{r})
			settleState(s, now, Tick{})
		}
		snap := s.Snapshot(now)
		if err := snap.Models[0].Plan.Validate(); err != nil {
			t.Error(err)
		}
		if err := snap.Models[0].Flow.Validate(); err != nil {
			t.Error(err)
		}
	})
}
