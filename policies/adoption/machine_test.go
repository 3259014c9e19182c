package adoption_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/policytest"
)

// Every partitioner prices as well as it proposes.
var (
	_ adoption.Planner = partition.Exact{}
	_ adoption.Planner = partition.Recursion{}
	_ adoption.Planner = partition.TwoPhase{}
)

func TestConfig(t *testing.T) {
	for _, bad := range []string{"Planner=", "Period=-1", "Period=NaN", "Period=+Inf", "Speed=-1", "Speed=+Inf"} {
		c := adoption.Config{Planner: partition.Exact{}}
		testkit.NoError(t, testkit.SetFields(&c, []string{bad}))
		var v *policies.Violation
		if _, err := adoption.New(c); !errors.As(err, &v) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if _, err := adoption.New(adoption.Config{Planner: partition.Exact{}}); err != nil {
		t.Error(err)
	}
}

// workload returns some flow for eight replicas: often one that is worth
// dividing, sometimes too much, with hand-overs from free to dear.
func workload(rng *rand.Rand) policies.Workload {
	if rng.IntN(4) == 0 {
		return policytest.RandomWorkload(rng)
	}
	w := policytest.ChatWorkload(policies.BucketEdges(16384, 1), 8, rng.Float64(), rng.Uint64())
	w.Transfer.Base *= math.Exp(4 * rng.NormFloat64())
	w.Cost.Kappa = 4 * rng.Float64()
	return w
}

// TestInvariants plays random fleets, flows and measurements to a machine with
// the real planner: what it adopts is valid and holds exactly the replicas
// there are, what it keeps is the plan it was given, and a second machine
// decides alike.
func TestInvariants(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	reasons := make(map[adoption.Reason]int)
	for range 60 {
		c := adoption.Config{Planner: partition.Exact{}}
		m, twin := testkit.Must(adoption.New(c)), testkit.Must(adoption.New(c))
		in := adoption.Input{Model: "m", Workload: workload(rng), Replicas: namedReplicas(8)}
		for range 120 {
			in.Now += 12 * rng.Float64()
			in.Workload.Flow.Seen += uint64(rng.IntN(200))
			switch rng.IntN(12) {
			case 0:
				in.Workload = workload(rng)
				in.Workload.Flow.Seen = uint64(rng.IntN(4000))
			case 1:
				r := &in.Replicas[rng.IntN(len(in.Replicas))]
				r.Draining = !r.Draining
			}
			in.Iterations = make([]float64, len(in.Plan.Stages))
			for s := range in.Iterations {
				in.Iterations[s] = 0.008 * math.Exp(rng.NormFloat64()/2)
			}
			before := in.Plan
			d := m.Step(in)
			if e := twin.Step(in); !reflect.DeepEqual(d, e) {
				t.Fatalf("two machines decide %+v and %+v", d, e)
			}
			reasons[d.Reason]++
			if !d.Adopt {
				if !reflect.DeepEqual(d.Plan, before) {
					t.Fatalf("kept (%s), but %+v became %+v", d.Reason, before, d.Plan)
				}
				continue
			}
			testkit.NoError(t, d.Plan.Validate())
			var got, want []policies.ReplicaID
			for _, s := range d.Plan.Stages {
				got = append(got, s.Replicas...)
			}
			for _, r := range in.Replicas {
				if !r.Draining {
					want = append(want, r.ID)
				}
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Fatalf("adopted (%s) %v for the replicas %v", d.Reason, got, want)
			}
			if rng.IntN(10) > 0 { // now and then it does not come into force
				in.Plan = d.Plan
			}
		}
	}
	t.Log(reasons)
	for _, r := range []adoption.Reason{adoption.FirstPlan, adoption.BetterPlan, adoption.OverLimits, adoption.Merged, adoption.RolledBack, adoption.ReplicasChanged,
		adoption.WaitingForPeriod, adoption.WarmingUp, adoption.HeldOff, adoption.Infeasible, adoption.SmallGain, adoption.AlreadyBest} {
		if reasons[r] == 0 {
			t.Errorf("%q never happened", r)
		}
	}
}

func BenchmarkStep(b *testing.B) {
	for _, replicas := range []int{16, 1024} {
		b.Run(fmt.Sprintf("replicas=%d", replicas), func(b *testing.B) {
			m := testkit.Must(adoption.New(adoption.Config{Planner: partition.Exact{}}))
			in := adoption.Input{Model: "m", Workload: policytest.ChatWorkload(policies.BucketEdges(131072, 4), replicas, 0.5, 1), Replicas: namedReplicas(replicas)}
			b.ReportAllocs()
			for b.Loop() {
				in.Now += 10
				in.Plan = m.Step(in).Plan
			}
		})
	}
}

// TestUnevenPlanStays checks that replicas are not spread over the hosts again while they are
// the same: that costs moves which no plan gains.
func TestUnevenPlanStays(t *testing.T) {
	m := testkit.Must(adoption.New(adoption.Config{Planner: partition.Exact{}}))
	in := adoption.Input{Model: "m", Workload: policytest.ChatWorkload(policies.BucketEdges(16384, 1), 4, 0.5, 1)}
	in.Workload.Flow.Seen = 0 // too few for another plan
	for _, id := range []policies.ReplicaID{"a1", "a2", "b1", "b2"} {
		in.Replicas = append(in.Replicas, policies.Replica{ID: id, Model: "m", Host: string(id[:1])})
	}
	in.Plan = policies.Plan{Model: "m", Stages: []policies.Stage{
		{High: 1000, Replicas: []policies.ReplicaID{"a1", "a2"}}, {Low: 1000, High: policies.Unbounded, Replicas: []policies.ReplicaID{"b1", "b2"}},
	}}
	for range 3 {
		if d := m.Step(in); d.Adopt {
			t.Fatalf("adopted (%s) %+v", d.Reason, d.Plan)
		}
		in.Now += 10
	}
}

// broken is a planner that refuses every workload.
type broken struct{ partition.Exact }

func (broken) Partition(policies.Workload) (policies.Partition, error) {
	return policies.Partition{}, &policies.Violation{Subject: "workload", Invariant: "broken"}
}

// TestInForce checks what a decision shows of a plan in force, adopted or not: its price without the headroom
// that new plans need, the planner's proposal, and why the planner refuses the workload.
func TestInForce(t *testing.T) {
	in := adoption.Input{Model: "m", Workload: policytest.ChatWorkload(policies.BucketEdges(16384, 1), 4, 0.6, 1), Replicas: namedReplicas(4)}
	in.Plan = policies.OneStagePlan("m", ids(in.Replicas))
	w := in.Workload
	w.Replicas = len(in.Replicas)
	best := testkit.Must(partition.Exact{}.Partition(w))
	for _, rule := range []adoption.Rule{adoption.ByGain, adoption.Always} {
		if d := testkit.Must(adoption.New(adoption.Config{Planner: broken{}, Adopt: rule})).Step(in); d.Err == nil || d.Reason != adoption.InvalidWorkload {
			t.Errorf("a refused workload gives %s, %v", d.Reason, d.Err)
		}
		if d := testkit.Must(adoption.New(adoption.Config{Planner: partition.Exact{}, Adopt: rule})).Step(in); !reflect.DeepEqual(d.Proposal, best) || rule == adoption.ByGain && d.Present.Cost != best.OneStage {
			t.Errorf("adopt %s: proposal %+v, want %+v; the plan in force costs %v", rule, d.Proposal, best, d.Present.Cost)
		}
	}
	in.Workload.Limits.Utilisation = 0.1
	if d := testkit.Must(adoption.New(adoption.Config{Planner: partition.Exact{}})).Step(in); d.Reason != adoption.Infeasible || math.IsInf(d.Present.Cost, 1) {
		t.Errorf("without headroom the plan in force costs %v: %s", d.Present.Cost, d.Reason)
	}
}
