package partition_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/policytest"
)

// TestNaiveRefiners tries every split of random requests: no other one makes the numbers of requests,
// or the sums of lengths, of both sides more equal.
func TestNaiveRefiners(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	undamped := partition.Damping{Smoothing: 1000}
	moved := 0
	for range 3000 {
		random := func(n int) (out []policies.Sequence) {
			for range n {
				l := policies.Tokens(1 + 50*rng.IntN(60))
				out = append(out, policies.Sequence{Input: 1 + policies.Tokens(rng.Int64N(int64(l))), Length: l})
			}
			return out
		}
		v := policies.BoundaryView{
			Boundary: 1 + policies.Tokens(rng.IntN(3000)), High: policies.Unbounded, QoE: policytest.H200QoE(),
			Local: random(rng.IntN(12)), Next: random(rng.IntN(8)), Peers: 1, Successors: 1, // one successor: its requests are the average
		}
		r := slices.Concat(v.Local, v.Next)
		slices.SortFunc(r, func(a, b policies.Sequence) int { return cmp.Compare(a.Length, b.Length) })
		for name, c := range map[string]struct {
			refiner policies.Refiner
			weight  func(policies.Sequence) int
		}{
			"quantity": {partition.Quantity{Damping: undamped}, func(policies.Sequence) int { return 1 }},
			"memory":   {partition.Memory{Damping: undamped}, func(s policies.Sequence) int { return int(s.Length) }},
		} {
			got := c.refiner.Refine(v)
			if len(r) < partition.DefaultFreeze {
				if got != v.Boundary {
					t.Fatalf("%s: %d requests moved the boundary", name, len(r))
				}
				continue
			}
			difference := func(i int) int {
				sum := 0
				for j, s := range r {
					if j < i {
						sum += c.weight(s)
					} else {
						sum -= c.weight(s)
					}
				}
				return max(sum, -sum)
			}
			least, atGot := 1<<60, 1<<60
			for i := range r {
				least = min(least, difference(i))
				if r[i].Length == got {
					atGot = min(atGot, difference(i))
				}
			}
			if atGot != least && got != 1 { // the boundary stays above the start of the stage
				t.Fatalf("%s: boundary %v is %d off, the best split %d\n%+v", name, got, atGot, least, v)
			}
			if got != v.Boundary {
				moved++
			}
		}
	}
	if moved < 3000 {
		t.Errorf("the boundary moved %d times", moved)
	}
}
