package partition_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/policytest"
)

// quality is Q^B of eq. 1, term by term.
func quality(m policies.QoE, set []policies.Sequence) float64 {
	f := [5]float64{1, float64(len(set))}
	for _, s := range set {
		f[2] += float64(s.Input)
		f[3] += float64(s.Input) * float64(s.Input)
		f[4] += float64(s.Length)
	}
	q := 0.0
	for k, d := range [5]float64{m.D0, m.D1, m.D2, m.D3, m.D4} {
		q += d * f[k]
	}
	return float64(len(set)) * q
}

// TestPaperRefiner compares partition.PaperRefiner with section "Adaptive Range Refinement" of the paper: the
// union of the successors' requests is divided by taking every n-th of the sorted requests from the
// n/2-th on; b = argmin over 0 ≤ i < N of Q^R[:i] + Q^R[i:]; the boundary is the length of R[b],
// and moves there by an exponential average.
func TestPaperRefiner(t *testing.T) {
	const inputs = 10_000
	rng := rand.New(rand.NewPCG(15, 4))
	moved, frozen, equal := 0, 0, 0
	for i := range inputs {
		m := policytest.H200QoE()
		m.D2 *= math.Exp(2 * rng.NormFloat64())
		m.D4 *= math.Exp(2 * rng.NormFloat64())
		random := func(n int) (out []policies.Sequence) {
			coarse := policies.Tokens(1 + 400*rng.IntN(2)) // many requests of equal length, or few
			for range n {
				length := coarse * (1 + policies.Tokens(rng.IntN(4000))/coarse)
				out = append(out, policies.Sequence{Input: 1 + policies.Tokens(rng.Int64N(int64(length))), Length: length})
			}
			return out
		}
		v := policies.BoundaryView{
			Boundary: policies.Tokens(1 + rng.IntN(5000)), High: policies.Unbounded, QoE: m,
			Local: random(rng.IntN(12)), Next: random(rng.IntN(40)), Peers: 1 + rng.IntN(4), Successors: rng.IntN(5), // 0 counts as 1
		}
		byLength := func(set []policies.Sequence) []policies.Sequence {
			set = slices.Clone(set)
			sort.Slice(set, func(i, j int) bool {
				return set[i].Length < set[j].Length || set[i].Length == set[j].Length && set[i].Input < set[j].Input
			})
			return set
		}
		all := slices.Clone(v.Local)
		for at, s := range byLength(v.Next) {
			if n := max(v.Successors, 1); at%n == n/2 {
				all = append(all, s)
			}
		}
		r := byLength(all)

		got := partition.PaperRefiner{Damping: partition.Damping{Smoothing: 1000}}.Refine(v)
		if len(r) < 5 {
			if got != v.Boundary {
				t.Fatalf("input %d: %d requests moved the boundary from %v to %v", i, len(r), v.Boundary, got)
			}
			frozen++
			continue
		}
		least, found := math.Inf(1), math.Inf(1)
		var at policies.Tokens
		for b := range r {
			q := quality(m, r[:b]) + quality(m, r[b:])
			if q < least {
				least, at = q, r[b].Length
			}
			if r[b].Length == got {
				found = min(found, q)
			}
		}
		if !(found <= least*(1+1e-12)) {
			t.Fatalf("input %d: boundary %v, by the paper %v\n%+v", i, got, at, v)
		}
		if got != v.Boundary {
			moved++
		}
		if n := slices.IndexFunc(r, func(s policies.Sequence) bool { return s.Length == got }); n+1 < len(r) && r[n+1].Length == got {
			equal++
		}
		smooth := 1 + rng.IntN(999)
		want := float64(v.Boundary) + float64(smooth)/1000*float64(got-v.Boundary)
		if to := (partition.PaperRefiner{Damping: partition.Damping{Smoothing: smooth}}).Refine(v); math.Abs(float64(to)-want) > 1 {
			t.Fatalf("input %d: smoothed by %d ‰ from %v to %v: %v, want %v", i, smooth, v.Boundary, got, to, want)
		}
	}
	t.Logf("%d inputs: %d moved, %d frozen, %d at a length of several requests", inputs, moved, frozen, equal)
	if moved < inputs/2 || frozen < inputs/50 || equal < inputs/10 {
		t.Error("the inputs are too easy")
	}
}
