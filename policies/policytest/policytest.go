// Package policytest checks that policies keep the contracts of their interfaces, and
// provides workloads for these checks.
//
// It is for tests only: a policy's test calls the function named after the interface, as
// in policytest.TestPartitioner(t, mypolicy.Policy{}). The package does not judge what a
// policy decides; it checks that a decision is valid, repeatable and within the limits.
package policytest

import (
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
)

// workloads is how many random workloads TestPartitioner tries.
const workloads = 300

// TestPartitioner runs the contract of policies.Partitioner on random and on
// hand-made workloads: equal workloads give equal partitions and are left as
// they were; a partition has growing cuts at bucket edges, one positive count
// per stage, as many replicas as there are, no more stages than allowed, and
// finite predictions within Limits.Iteration, and, if Exact, a cost at most that
// of one stage; too much work gives policies.ErrInfeasible; an invalid workload
// gives a *policies.Violation.
func TestPartitioner(t *testing.T, p policies.Partitioner) {
	t.Run("contract", func(t *testing.T) {
		rng := rand.New(rand.NewPCG(3, 1))
		solved := 0
		for range workloads {
			w := RandomWorkload(rng)
			before := clone(w)
			got, err := p.Partition(w)
			if !reflect.DeepEqual(w, before) {
				t.Fatalf("the workload was changed: %+v", w)
			}
			again, err2 := p.Partition(before)
			if err != err2 || !reflect.DeepEqual(got, again) {
				t.Fatalf("equal workloads give %+v (%v) and %+v (%v)", got, err, again, err2)
			}
			if err != nil {
				if !errors.Is(err, policies.ErrInfeasible) {
					t.Fatalf("a valid workload gives %v", err)
				}
				continue
			}
			solved++
			checkPartition(t, w, got)
		}
		if solved < workloads/4 {
			t.Errorf("only %d of %d workloads were solved", solved, workloads)
		}
	})
	for name, replicas := range map[string]int{"no work": 4, "one replica": 1} {
		t.Run(name, func(t *testing.T) {
			w := idle()
			w.Replicas = replicas
			got, err := p.Partition(w)
			if err != nil {
				t.Fatal(err)
			}
			checkPartition(t, w, got)
		})
	}
	t.Run("too much work", func(t *testing.T) {
		w := idle()
		w.Flow.Tokens[2], w.Flow.Reads[2] = 1e9, 1e12
		w.Snapshot[2] = policies.Batch{N: 1e9, SumI: 1e12, SumI2: 1e15, SumL: 1e12}
		if got, err := p.Partition(w); !errors.Is(err, policies.ErrInfeasible) {
			t.Errorf("got %+v, %v", got, err)
		}
	})
	t.Run("invalid", func(t *testing.T) {
		for name, edit := range map[string]func(*policies.Workload){
			"edges":       func(w *policies.Workload) { w.Flow.Edges = []policies.Tokens{1, 2, 3, 4} },
			"rate":        func(w *policies.Workload) { w.Flow.Tokens[0] = math.NaN() },
			"QoE":         func(w *policies.Workload) { w.QoE = policies.QoE{} },
			"cost":        func(w *policies.Workload) { w.Cost.D0 = 0 },
			"capacity":    func(w *policies.Workload) { w.Capacity.KV = 0 },
			"replicas":    func(w *policies.Workload) { w.Replicas = 0 },
			"limits":      func(w *policies.Workload) { w.Limits.Utilisation = 2 },
			"transfer":    func(w *policies.Workload) { w.Transfer.Base = -1 },
			"snapshot":    func(w *policies.Workload) { w.Snapshot = w.Snapshot[:1] },
			"zero values": func(w *policies.Workload) { *w = policies.Workload{} },
		} {
			w := idle()
			edit(&w)
			var v *policies.Violation
			if got, err := p.Partition(w); !errors.As(err, &v) {
				t.Errorf("%s: got %+v, %v", name, got, err)
			}
		}
	})
}

// checkPartition checks what the type promises of a proposal.
func checkPartition(t *testing.T, w policies.Workload, p policies.Partition) {
	t.Helper()
	limit := policies.MaxStages
	if w.Limits.Stages > 0 {
		limit = min(limit, w.Limits.Stages)
	}
	if len(p.Counts) != len(p.Cuts)+1 || len(p.Counts) > limit {
		t.Fatalf("%d counts for %d cuts, at most %d stages", len(p.Counts), len(p.Cuts), limit)
	}
	sum := 0
	for _, k := range p.Counts {
		if k < 1 {
			t.Fatalf("counts %v: every stage needs a replica", p.Counts)
		}
		sum += k
	}
	if sum != w.Replicas {
		t.Fatalf("counts %v add up to %d, there are %d replicas", p.Counts, sum, w.Replicas)
	}
	low := policies.Tokens(0)
	for _, cut := range p.Cuts {
		if cut <= low || w.Flow.Edges[policies.BucketOf(w.Flow.Edges, cut)] != cut {
			t.Fatalf("cuts %v must grow, at bucket edges", p.Cuts)
		}
		low = cut
	}
	if !(p.Cost >= 0) || math.IsInf(p.Cost, 1) || !(p.OneStage >= 0) {
		t.Fatalf("cost %v, one stage %v", p.Cost, p.OneStage)
	}
	if len(p.Counts) == 1 && math.Abs(p.Cost-p.OneStage) > 1e-9*p.Cost {
		t.Fatalf("one stage costs %v and %v", p.Cost, p.OneStage)
	}
	if p.Exact && p.Cost > p.OneStage*(1+1e-9) {
		t.Fatalf("the best partition costs %v, one stage %v", p.Cost, p.OneStage)
	}
	if p.Iterations != nil && len(p.Iterations) != len(p.Counts) {
		t.Fatalf("%d iteration times for %d stages", len(p.Iterations), len(p.Counts))
	}
	for _, x := range p.Iterations {
		if !(x > 0) || math.IsInf(x, 1) {
			t.Fatalf("iteration times %v", p.Iterations)
		}
		if limit := w.Limits.Iteration; limit > 0 && x > limit*(1+1e-9) {
			t.Fatalf("iteration times %v, the limit is %v", p.Iterations, limit)
		}
	}
}

// idle is a small fleet with nothing to do.
func idle() policies.Workload {
	return policies.Workload{
		Flow:     policies.NewFlow([]policies.Tokens{0, 16, 32, 64}),
		Snapshot: make([]policies.Batch, 4),
		QoE:      policies.QoE{D0: 0.01, D1: 1e-5, D4: 1e-8},
		Cost:     policies.Cost{D0: 0.01, D1: 1e-5, D4: 1e-8},
		Capacity: policies.Capacity{KV: 100000, Batch: 100},
		Replicas: 4,
	}
}

// clone copies a workload and what it points to.
func clone(w policies.Workload) policies.Workload {
	f := policies.NewFlow(append([]policies.Tokens(nil), w.Flow.Edges...))
	sum, _ := f.Plus(w.Flow)
	sum.Edges = f.Edges
	w.Flow = sum
	w.Snapshot = append([]policies.Batch(nil), w.Snapshot...)
	return w
}
