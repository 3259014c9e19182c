package planner

import (
	"math"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
)

// TestPeriodDoesNotDependOnSpeeds checks that the requests of a period are counted by the
// tokens that they generate: two replicas that generate as many tokens a second count alike,
// though one of them is slow and has three times as many requests in flight.
func TestPeriodDoesNotDependOnSpeeds(t *testing.T) {
	v := View{Replicas: make([]ReplicaView, 3), Grace: policies.Second, HalfLife: policies.Second}
	const fast, slow, idle = 0, 1, 2
	report := func(replica int, n, iteration float64, bucket int) {
		r := &v.Replicas[replica]
		*r = ReplicaView{Reported: true, Flow: policies.NewFlow(edges), Snapshot: make([]policies.Batch, 2)}
		r.Load.Running, r.Load.Iteration = int(n), iteration
		r.Snapshot[bucket] = policies.Batch{N: n, SumI: 2 * n, SumI2: 4 * n, SumL: 10 * n}
	}
	report(idle, 5, 0, 0)
	var p Period
	for range 2 {
		report(fast, 10, 0.01, 0)
		report(slow, 30, 0.03, 1)
		v.AddToPeriod(edges, &p)
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
