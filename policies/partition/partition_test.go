package partition_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/policytest"
)

var models = []partition.Objective{partition.Flow, partition.Snapshot}

func TestConformance(t *testing.T) {
	for _, m := range models {
		for name, p := range map[string]policies.Partitioner{
			"exact":     partition.Exact{Objective: m},
			"default":   partition.Exact{Objective: m, Slack: partition.DefaultSlack},
			"recursion": partition.Recursion{Objective: m},
			"two-phase": partition.TwoPhase{Objective: m},
		} {
			t.Run(name+"/"+m.String(), func(t *testing.T) { policytest.TestPartitioner(t, p) })
		}
	}
}

func TestNamed(t *testing.T) {
	for _, name := range partition.Names() {
		if _, ok := partition.ByName(name); !ok {
			t.Errorf("%q is listed, and gives nothing", name)
		}
	}
	for name, want := range map[string]policies.Partitioner{
		"default":    partition.Exact{Slack: partition.DefaultSlack},
		"least-cost": partition.Exact{},
		"recursion":  partition.Recursion{},
		"two-phase":  partition.TwoPhase{},
		"paper":      partition.TwoPhase{Objective: partition.Snapshot},
		"":           nil,
		"other":      nil,
	} {
		if got, ok := partition.ByName(name); got != want || ok != (want != nil) {
			t.Errorf("%q gives %v, %v", name, got, ok)
		}
	}
}

// TestExactEqualsOracle compares Exact with the enumeration of all plans. With a slack, no plan within it has
// fewer stages, and none with as many is cheaper.
func TestExactEqualsOracle(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	fleets := testkit.Size(4000, 24000)
	solved, split, capped, fewer, still := 0, 0, 0, 0, 0
	for i := range fleets {
		w := policytest.RandomWorkload(rng)
		m := models[i%len(models)]
		costs := oracleByStages(m, w)
		least := slices.Min(costs)
		for _, slack := range []float64{0, []float64{0.001, partition.DefaultSlack, 0.05, 0.3}[rng.IntN(4)]} {
			got, err := partition.Exact{Objective: m, Slack: slack}.Partition(w)
			if math.IsInf(least, 1) {
				if !errors.Is(err, policies.ErrInfeasible) {
					t.Fatalf("fleet %d: nothing is feasible, got %+v, %v", i, got, err)
				}
				continue
			}
			if err != nil {
				t.Fatalf("fleet %d (%v): %v, want a cost of %v\n%+v", i, m, err, least, w)
			}
			want := least
			if slack > 0 {
				stages := 1 + slices.IndexFunc(costs, func(c float64) bool { return c <= least*(1+slack)*(1+1e-9) })
				if want = costs[stages-1]; len(got.Counts) != stages {
					t.Fatalf("fleet %d (%v), slack %v: %+v, want %d stages at %v, the least being %v\n%+v", i, m, slack, got, stages, want, least, w)
				}
				if !equal(want, least) {
					fewer++
					still += min(stages-1, 1)
				}
			}
			if !equal(got.Cost, want) || !got.Exact {
				t.Fatalf("fleet %d (%v), slack %v: cost %v, want %v (%+v)\n%+v", i, m, slack, got.Cost, want, got, w)
			}
			if q := price(m, w, got.Cuts, got.Counts); !equal(q, want) {
				t.Fatalf("fleet %d (%v): the partition costs %v, want %v", i, m, q, want)
			}
			if q := price(m, w, nil, []int{w.Replicas}); !equal(got.OneStage, q) {
				t.Fatalf("fleet %d (%v): one stage costs %v, want %v", i, m, got.OneStage, q)
			}
			if slack == 0 {
				solved++
				split += min(len(got.Cuts), 1)
				if len(got.Counts) == w.Limits.Stages {
					capped++
				}
			}
		}
	}
	t.Logf("%d fleets: %d feasible, %d split, %d at the stage limit; %d have fewer stages than the best, %d of them more than one", fleets, solved, split, capped, fewer, still)
	if solved < fleets/3 || split < fleets/6 || capped < fleets/20 || fewer < fleets/20 || still < fleets/200 {
		t.Error("the fleets are too easy")
	}
}

// larger returns a workload of many buckets, at random with limits.
func larger(rng *rand.Rand, replicas int, perOctave int) policies.Workload {
	w := policytest.ChatWorkload(policies.BucketEdges(32768, perOctave), replicas, 0.1+0.8*rng.Float64(), rng.Uint64())
	small := policytest.RandomWorkload(rng)
	w.Cost.Kappa, w.Transfer, w.Limits = small.Cost.Kappa, small.Transfer, small.Limits
	w.Limits.Iteration *= 3
	if rng.IntN(2) == 0 {
		w.Capacity.TransferRate = 0.05 + 20*rng.Float64()
	}
	if rng.IntN(3) == 0 {
		w.Transfer = policies.Transfer{} // then the stage limit binds
	}
	return w
}

// TestExactEqualsRecursion compares the two exact algorithms where enumeration is
// impossible, with the stage limit of 8.
func TestExactEqualsRecursion(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	binding := 0
	for i, size := range []struct{ replicas, perOctave, times int }{
		{64, 5, testkit.Size(0, 3)}, {24, 4, testkit.Size(3, 24)}, {12, 8, testkit.Size(3, 24)}, {40, 1, 150},
	} {
		for n := range size.times {
			w := larger(rng, size.replicas, size.perOctave)
			m := models[n%len(models)]
			want, err := partition.Recursion{Objective: m}.Partition(w)
			got, err2 := partition.Exact{Objective: m}.Partition(w)
			if err != err2 || !equal(got.Cost, want.Cost) || got.Exact != want.Exact {
				t.Fatalf("size %d, %d (%v): exact %v (%v), recursion %v (%v)", i, n, m, got, err2, want, err)
			}
			if len(got.Counts) == policies.MaxStages {
				binding++
			}
		}
	}
	t.Logf("%d partitions use all %d stages", binding, policies.MaxStages)
	if binding == 0 {
		t.Error("the limit of stages never binds")
	}
}

// TestTwoPhase checks that the heuristic never beats the optimum, never proposes a plan
// that its model forbids, and finds the optimum of easy fleets.
func TestTwoPhase(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	same, missed, fleets := 0, 0, testkit.Size(1000, 3000)
	for i := range fleets {
		w := policytest.RandomWorkload(rng)
		if i%10 == 0 {
			w = larger(rng, 1+rng.IntN(80), 1+rng.IntN(3))
		}
		m := models[i%len(models)]
		best, err := partition.Exact{Objective: m}.Partition(w)
		got, err2 := partition.TwoPhase{Objective: m}.Partition(w)
		switch {
		case err != nil:
			if err2 == nil {
				t.Fatalf("fleet %d: nothing is feasible, got %+v", i, got)
			}
			continue
		case err2 != nil:
			missed++
			continue
		case got.Cost < best.Cost*(1-1e-9):
			t.Fatalf("fleet %d: the heuristic's %v is better than the best, %v", i, got, best)
		case got.Exact:
			t.Fatalf("fleet %d: the heuristic claims to be exact", i)
		}
		if q := price(m, w, got.Cuts, got.Counts); !equal(q, got.Cost) {
			t.Fatalf("fleet %d: %+v costs %v", i, got, q)
		}
		if equal(got.Cost, best.Cost) {
			same++
		}
	}
	t.Logf("optimal in %d, no answer in %d", same, missed)
	if same < fleets/10 {
		t.Errorf("optimal in %d of %d only", same, fleets)
	}
}

// TestHugeFleet checks that no step depends on small numbers: 10,000 replicas, idle and
// busy, and prices whose quotients exceed the range of integers.
func TestHugeFleet(t *testing.T) {
	for _, share := range []float64{0, 1e-12, 0.5, 0.999} {
		w := policytest.ChatWorkload(policies.BucketEdges(131072, 2), 10000, share, 1)
		w.Capacity = policies.Capacity{KV: 1 << 40, Batch: 1 << 40}
		got, err := partition.Exact{}.Partition(w)
		if err != nil {
			t.Fatalf("share %v: %v", share, err)
		}
		if !got.Exact || got.Cost > got.OneStage {
			t.Errorf("share %v: %+v", share, got)
		}
	}
	w := policytest.ChatWorkload(policies.BucketEdges(131072, 2), 100, 0.5, 1)
	for b := range w.Flow.Tokens {
		w.Flow.Tokens[b] = math.MaxFloat64
	}
	w.Capacity = policies.Capacity{KV: math.MaxInt64, Batch: math.MaxInt64}
	if _, err := (partition.Exact{}).Partition(w); !errors.Is(err, policies.ErrInfeasible) {
		t.Errorf("rates past every replica give %v", err)
	}
	if got, err := (partition.TwoPhase{}).Chain(w); err != nil || !math.IsInf(got.Cost, 1) {
		t.Errorf("rates past every replica: a chain that costs %v, %v", got.Cost, err)
	}
	w.Snapshot, w.QoE = make([]policies.Batch, len(w.Flow.Edges)), policies.QoE{D0: 1, D3: 1}
	w.Snapshot[0] = policies.Batch{N: 1e10, SumI2: 1e300}
	if _, err := (partition.Exact{Objective: partition.Snapshot}).Partition(w); !errors.Is(err, policies.ErrInfeasible) {
		t.Errorf("a price past every number gives %v", err)
	}
	// Each of two stages has a price, but not both together.
	w = policies.Workload{
		Flow: policies.NewFlow([]policies.Tokens{0, 1000}), Snapshot: []policies.Batch{{N: 1e18}, {N: 1e18}},
		Cost: policies.Cost{D0: 1}, QoE: policies.QoE{D0: 1e290}, Capacity: w.Capacity, Replicas: 2,
	}
	copy(w.Flow.Tokens, []float64{1, 1})
	for _, p := range []policies.Partitioner{partition.Exact{Objective: partition.Snapshot}, partition.Recursion{Objective: partition.Snapshot}, partition.TwoPhase{Objective: partition.Snapshot}} {
		if _, err := p.Partition(w); !errors.Is(err, policies.ErrInfeasible) {
			t.Errorf("%T: a sum past every number gives %v", p, err)
		}
	}
}

func TestPrice(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	infeasible := 0
	for i := range 3000 {
		w := policytest.RandomWorkload(rng)
		m := models[i%len(models)]
		cuts, counts := []policies.Tokens(nil), []int{1 + rng.IntN(5)}
		for b := 1; b < len(w.Flow.Edges); b++ {
			if rng.IntN(2) == 0 {
				cuts, counts = append(cuts, w.Flow.Edges[b]), append(counts, 1+rng.IntN(5))
			}
		}
		got, err := m.Price(w, cuts, counts)
		want := price(m, w, cuts, counts)
		if !equal(got.Cost, want) || math.IsInf(want, 1) != errors.Is(err, policies.ErrInfeasible) {
			t.Fatalf("fleet %d (%v): %v costs %v (%v), want %v", i, m, cuts, got.Cost, err, want)
		}
		if err != nil {
			infeasible++
		}
		if len(got.Iterations) != len(counts) || !reflect.DeepEqual(got.Counts, counts) || len(got.Cuts) != len(cuts) {
			t.Fatalf("fleet %d: %+v for %v %v", i, got, cuts, counts)
		}
	}
	if infeasible < 300 || infeasible > 2700 {
		t.Errorf("%d of 3000 divisions are infeasible", infeasible)
	}
}

// TestIdleFleet checks that stages without work cost nothing under every objective, and that
// an iteration may take as long as its limit.
func TestIdleFleet(t *testing.T) {
	edges := policies.BucketEdges(4096, 2)
	w := policies.Workload{
		Flow: policies.NewFlow(edges), Snapshot: make([]policies.Batch, len(edges)), Cost: policytest.H200Cost(), QoE: policytest.H200QoE(),
		Capacity: policies.Capacity{KV: 1 << 20, Batch: 256}, Replicas: 8,
	}
	for _, m := range models {
		if w.Limits.Iteration = w.Cost.D0; m == partition.Snapshot {
			w.Limits.Iteration = w.QoE.D0
		}
		if got, err := m.Price(w, []policies.Tokens{512}, []int{4, 4}); err != nil || got.Cost != 0 {
			t.Errorf("%v: cost %v, %v", m, got.Cost, err)
		}
		if got, err := (partition.Exact{Objective: m}).Partition(w); err != nil || got.Cost != 0 || len(got.Counts) != 1 {
			t.Errorf("%v: planned %+v, %v", m, got, err)
		}
	}
}

// TestPrefillOnly checks that replicas whose whole time goes into prompts are overloaded, and
// that one more suffices.
func TestPrefillOnly(t *testing.T) {
	w := policies.Workload{
		Flow: policies.NewFlow([]policies.Tokens{0}), Cost: policies.Cost{D0: 1, D2: 0.5},
		Capacity: policies.Capacity{KV: 1 << 20, Batch: 256}, Replicas: 2,
	}
	w.Flow.Prefill[0] = 4
	if got, err := partition.Flow.Price(w, nil, []int{2}); !errors.Is(err, policies.ErrInfeasible) {
		t.Errorf("two replicas of two busy ones: %+v, %v", got, err)
	}
	if got, err := partition.Flow.Price(w, nil, []int{3}); err != nil {
		t.Errorf("three replicas: %+v, %v", got, err)
	}
}

func TestPriceBetweenEdges(t *testing.T) {
	w := policytest.ChatWorkload(policies.BucketEdges(4096, 2), 8, 0.2, 1)
	at, err := partition.Flow.Price(w, []policies.Tokens{512, 1024}, []int{3, 3, 2})
	testkit.NoError(t, err)
	near, err := partition.Flow.Price(w, []policies.Tokens{520, 990}, []int{3, 3, 2})
	if err != nil || near.Cost != at.Cost || near.Cuts[0] != 520 {
		t.Errorf("near cuts give %+v, %v, want the cost of %+v", near, err, at)
	}
	for name, c := range map[string]struct {
		cuts   []policies.Tokens
		counts []int
	}{
		"counts":    {[]policies.Tokens{512}, []int{8}},
		"no stage":  {nil, nil},
		"order":     {[]policies.Tokens{512, 512}, []int{3, 3, 2}},
		"zero cut":  {[]policies.Tokens{0}, []int{3, 3}},
		"no end":    {[]policies.Tokens{policies.Unbounded}, []int{3, 3}},
		"no worker": {[]policies.Tokens{512}, []int{8, 0}},
	} {
		var v *policies.Violation
		if _, err := partition.Flow.Price(w, c.cuts, c.counts); !errors.As(err, &v) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A flow with one bucket has no edge to cut at, so the replicas after the first
	// stage have no work.
	one := policytest.ChatWorkload(policies.BucketEdges(0, 1), 8, 0.2, 1)
	if got, err := partition.Flow.Price(one, []policies.Tokens{512, 1024}, []int{6, 1, 1}); err != nil || got.Iterations[2] != one.Cost.D0 {
		t.Errorf("one bucket: %+v, %v", got, err)
	}
	if _, err := partition.Objective(9).Price(w, nil, []int{8}); err == nil {
		t.Error("an unknown model prices")
	}
}

// TestInFlight checks Little's law for one stage of all replicas, whatever the limits, and
// the bound for an overloaded fleet.
func TestInFlight(t *testing.T) {
	w := policytest.ChatWorkload(policies.BucketEdges(4096, 2), 8, 0.5, 1)
	tokens := 0.0
	for _, rate := range w.Flow.Tokens {
		tokens += rate
	}
	one, err := partition.Flow.Price(w, nil, []int{8})
	if err != nil || tokens == 0 {
		t.Fatal(err)
	}
	if got, want := partition.InFlight(w), tokens*one.Iterations[0]; !equal(got, want) {
		t.Errorf("%v in flight, want %v", got, want)
	}
	w.Limits.Iteration = one.Iterations[0] / 2
	if got, want := partition.InFlight(w), tokens*min(one.Iterations[0], 20*w.Cost.D0); !equal(got, want) {
		t.Errorf("over the limit: %v in flight, want %v", got, want)
	}
	w.Replicas, w.Limits = 1, policies.Limits{}
	if got, want := partition.InFlight(w), tokens*20*w.Cost.D0; !equal(got, want) {
		t.Errorf("overloaded: %v in flight, want %v", got, want)
	}
	busy := policytest.ChatWorkload(policies.BucketEdges(4096, 2), 8, 0.99, 1)
	busy.Capacity = policies.Capacity{KV: 1 << 40, Batch: 1 << 40}
	free := partition.InFlight(busy)
	busy.Limits.Iteration = busy.Cost.D0
	if got := partition.InFlight(busy); got != free {
		t.Errorf("the limit of iterations changes what is in flight from %v to %v", free, got)
	}
	busy.Capacity.Batch = 1
	if got := partition.InFlight(busy); got >= free {
		t.Errorf("%v in flight, more than replicas of one request each can hold: as bounded as overload, less than %v", got, free)
	}
	w.Replicas = 0
	if got := partition.InFlight(w); got != 0 {
		t.Errorf("without replicas: %v in flight", got)
	}
}

func TestObjectiveNames(t *testing.T) {
	for m, want := range map[partition.Objective]string{-1: "unknown", partition.Flow: "flow", partition.Snapshot: "snapshot", 2: "unknown"} {
		if got := m.String(); got != want {
			t.Errorf("%d is %q, want %q", int(m), got, want)
		}
		w := policytest.ChatWorkload(policies.BucketEdges(4096, 2), 8, 0.5, 1)
		w.Snapshot = nil
		_, err := m.Price(w, nil, []int{8})
		if (err == nil) != (want == "flow") {
			t.Errorf("%s without a snapshot: %v", want, err)
		}
	}
}
