package partition_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/policytest"
)

// TestLeastEqualsOracle compares Least with the enumeration of all plans: with as many replicas there is
// one within the limits, with one less there is none.
func TestLeastEqualsOracle(t *testing.T) {
	const most = 8 // replicas that are enumerated
	rng := rand.New(rand.NewPCG(5, 1))
	found, split, none := 0, 0, 0
	limits := make(map[partition.Limit]int)
	for i := range testkit.Size(900, 6000) {
		w := policytest.RandomWorkload(rng)
		m := models[i%len(models)]
		feasible := func(n int) bool {
			w := w
			w.Replicas = n
			return !math.IsInf(oracle(m, w), 1)
		}
		cuts, needs, err := m.Least(w)
		if err != nil {
			if none++; !errors.Is(err, policies.ErrInfeasible) || feasible(most) {
				t.Fatalf("%v: %v, but %d replicas are enough: %+v", m, err, most, w)
			}
			continue
		}
		least := 0
		for _, n := range needs {
			least += n.Replicas
			limits[n.Limit]++
		}
		switch {
		case len(needs) != len(cuts)+1:
			t.Fatalf("%v: %d cuts and %d stages", m, len(cuts), len(needs))
		case least > most && feasible(most), least <= most && !feasible(least), least <= most && least > 1 && feasible(least-1):
			t.Fatalf("%v: %d replicas are said to be the least: %+v", m, least, w)
		case least <= most:
			found++
		}
		if len(cuts) > 0 {
			split++
		}
		again, err := m.Needs(w, cuts)
		if err != nil || len(again) != len(needs) {
			t.Fatalf("the same cuts need %v, %v", again, err)
		}
		for i := range needs {
			if again[i] != needs[i] {
				t.Errorf("stage %d needs %+v by its cuts, and %+v", i, again[i], needs[i])
			}
		}
	}
	if found < 100 || split < 10 || none < 10 {
		t.Errorf("%d found, %d with several stages, %d without an answer: the workloads show too little", found, split, none)
	}
	for l := partition.LimitWork; l <= partition.LimitBursts; l++ {
		if limits[l] == 0 {
			t.Errorf("no stage needs replicas for %v", l)
		}
	}
}

// TestLeastRefuses checks the errors.
func TestLeastRefuses(t *testing.T) {
	w := policytest.ChatWorkload(policies.BucketEdges(8192, 2), 4, 0.5, 1)
	var violation *policies.Violation
	for name, err := range map[string]error{
		"no replicas":      errOf(partition.Flow.Least(policies.Workload{Flow: w.Flow, Cost: w.Cost, Capacity: w.Capacity})),
		"a bad objective":  errOf(partition.Objective(9).Least(w)),
		"cuts that shrink": errOnly(partition.Flow.Needs(w, []policies.Tokens{200, 100})),
		"no flow":          errOnly(partition.Flow.Needs(policies.Workload{Replicas: 1}, nil)),
	} {
		if !errors.As(err, &violation) {
			t.Errorf("%s: %v, want a violation", name, err)
		}
	}
	w.Limits.Iteration = w.Cost.D0 / 2
	if err := errOnly(partition.Flow.Needs(w, nil)); !errors.Is(err, policies.ErrInfeasible) {
		t.Errorf("no stage is that fast: %v", err)
	}
	if got := partition.Limit(99).String(); got != "unknown" {
		t.Errorf("limit 99 is %q", got)
	}
}

func errOf(_ []policies.Tokens, _ []partition.Need, err error) error { return err }
func errOnly(_ []partition.Need, err error) error                    { return err }
