package main

import (
	"math"
	"testing"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/testkit"
)

// TestPlanOnOwnLengths plans by the paper's policy, for a sample with the lengths of public
// traces and on every shipped profile: each bucket has the inputs of the requests that pass
// through it, and the long ones get stages of their own. With the mean inputs of all requests
// in every bucket, one stage was best.
func TestPlanOnOwnLengths(t *testing.T) {
	mix, _ := trace.Named("mixed")
	mix.Requests, mix.Seed, mix.Rate = 5000, 1, 12
	requests := testkit.Must(mix.Generate())
	for _, profile := range cost.Names() {
		p := planFlags{profile: profile, replicas: 8, context: 131072, tp: 1, stages: policies.MaxStages}
		w := testkit.Must(p.workload(requests))
		var sum policies.Batch
		for b, x := range w.Snapshot {
			sum = sum.Plus(x)
			if b+1 == len(w.Flow.Edges) || x.N == 0 {
				continue
			}
			low, high, mean := float64(w.Flow.Edges[b]), float64(w.Flow.Edges[b+1]), x.SumL/x.N
			if input := x.SumI / x.N; mean < low || mean >= high || input >= mean || x.SumI2 < input*x.SumI*(1-1e-9) {
				t.Fatalf("%s: bucket [%v, %v) has the batch %+v", profile, low, high, x)
			}
		}
		reads := 0.0
		for _, x := range w.Flow.Reads {
			reads += x
		}
		one := testkit.Must(partition.Flow.Price(w, nil, []int{8})).Iterations[0]
		if want := reads * one; math.Abs(sum.SumL-want) > 1e-4*want { // the counters forget a little
			t.Errorf("%s: %v tokens in flight, by Little's law %v", profile, sum.SumL, want)
		}

		got := testkit.Must(partition.TwoPhase{Objective: partition.Snapshot}.Partition(w))
		best := testkit.Must(partition.Exact{Objective: partition.Snapshot}.Partition(w))
		t.Logf("%s: %v at %v gain %.1f %%, the best %.1f %%", profile, got.Counts, got.Cuts, 100*(1-got.Cost/got.OneStage), 100*(1-best.Cost/best.OneStage))
		if len(got.Counts) < 3 || got.Cost > 0.98*got.OneStage {
			t.Errorf("%s: %d stages, cost %.4g, one stage %.4g", profile, len(got.Counts), got.Cost, got.OneStage)
		}
		if got.Cost < 0.7*got.OneStage {
			t.Errorf("%s: a gain of %.0f %% at this load: every token pays a whole prefill?", profile, 100*(1-got.Cost/got.OneStage))
		}
	}
}
