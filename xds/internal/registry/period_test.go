package registry

import (
	"math"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// TestPeriodDoesNotDependOnSpeeds checks that the requests of a period are counted by the
// tokens that they generate: two replicas that generate as many tokens a second count alike,
// though one of them is slow and has three times as many requests in flight.
func TestPeriodDoesNotDependOnSpeeds(t *testing.T) {
	edges := []policies.Tokens{0, 100}
	g := New(Config{Grace: time.Minute, HalfLife: time.Minute})
	now := time.Unix(0, 0)
	g.Configure(now, []policies.Replica{{ID: "fast", Model: "m"}, {ID: "slow", Model: "m"}, {ID: "idle", Model: "m"}, {ID: "other", Model: "n"}})
	report := func(id policies.ReplicaID, n, iteration float64, bucket int) {
		r := g.Get(id)
		r.Report = loadreport.Report{Replica: id, Flow: policies.NewFlow(edges), Snapshot: make([]policies.Batch, 2)}
		r.Report.Load.Running, r.Report.Load.Iteration = int(n), iteration
		r.Report.Snapshot[bucket] = policies.Batch{N: n, SumI: 2 * n, SumI2: 4 * n, SumL: 10 * n}
		r.ReportedAt = now
	}
	report("idle", 5, 0, 0)
	report("other", 1000, 0.01, 0)
	var p Period
	for range 2 {
		report("fast", 10, 0.01, 0)
		report("slow", 30, 0.03, 1)
		g.AddToPeriod(now, "m", edges, &p)
	}
	for b, x := range p.Batches(edges, 40) {
		if want := (policies.Batch{N: 20, SumI: 40, SumI2: 80, SumL: 200}); math.Abs(x.N-want.N)+math.Abs(x.SumI-want.SumI)+math.Abs(x.SumI2-want.SumI2)+math.Abs(x.SumL-want.SumL) > 1e-9 {
			t.Errorf("bucket %d: %+v, want %+v", b, x, want)
		}
	}
	if x := new(Period).Batches(edges, 40); len(x) != 2 || x[0] != (policies.Batch{}) {
		t.Errorf("without a sample: %+v", x)
	}
}
