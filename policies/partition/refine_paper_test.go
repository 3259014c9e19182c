package partition_test

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
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

// difference returns how far apart the weights of two sets are.
func difference(below, above []policies.Sequence, weight func(policies.Sequence) policies.Tokens) float64 {
	sum := policies.Tokens(0)
	for _, s := range below {
		sum += weight(s)
	}
	for _, s := range above {
		sum -= weight(s)
	}
	return float64(max(sum, -sum))
}

// TestPaperRefiners compares the paper's refiner and the naïve ones with section "Adaptive Range Refinement" of
// the paper: the union of the successors' requests is divided by taking every n-th of the sorted requests from the
// n/2-th on; b = argmin over 0 ≤ i < N of Q^R[:i] + Q^R[i:], or of the difference of the numbers of requests or of
// their lengths; the boundary is the length of R[b], and moves there by an exponential average.
func TestPaperRefiners(t *testing.T) {
	for name, policy := range map[string]struct {
		refiner func(partition.Damping) policies.Refiner
		cost    func(m policies.QoE, below, above []policies.Sequence) float64
	}{
		"paper": {func(d partition.Damping) policies.Refiner { return partition.PaperRefiner{Damping: d} }, func(m policies.QoE, below, above []policies.Sequence) float64 {
			return quality(m, below) + quality(m, above)
		}},
		"quantity": {func(d partition.Damping) policies.Refiner { return partition.Quantity{Damping: d} }, func(_ policies.QoE, below, above []policies.Sequence) float64 {
			return difference(below, above, func(policies.Sequence) policies.Tokens { return 1 })
		}},
		"memory": {func(d partition.Damping) policies.Refiner { return partition.Memory{Damping: d} }, func(_ policies.QoE, below, above []policies.Sequence) float64 {
			return difference(below, above, func(s policies.Sequence) policies.Tokens { return s.Length })
		}},
	} {
		const inputs = 5_000
		rng := rand.New(rand.NewPCG(15, 4))
		moved, frozen, equal := 0, 0, 0
		for i := range inputs {
			v := randomBoundary(rng)
			all := slices.Clone(v.Local)
			for at, s := range byLength(v.Next) {
				if n := max(v.Successors, 1); at%n == n/2 {
					all = append(all, s)
				}
			}
			r := byLength(all)
			got := policy.refiner(partition.Damping{Smoothing: 1000}).Refine(v)
			if len(r) < partition.DefaultFreeze {
				if got != v.Boundary {
					t.Fatalf("%s: input %d: %d requests moved the boundary from %v to %v", name, i, len(r), v.Boundary, got)
				}
				frozen++
				continue
			}
			least, found := math.Inf(1), math.Inf(1)
			for b := range r {
				q := policy.cost(v.QoE, r[:b], r[b:])
				least = min(least, q)
				if r[b].Length == got {
					found = min(found, q)
				}
			}
			if !(found <= least*(1+1e-12)) {
				t.Fatalf("%s: input %d: boundary %v costs %v, the best %v\n%+v", name, i, got, found, least, v)
			}
			if got != v.Boundary {
				moved++
			}
			if n := slices.IndexFunc(r, func(s policies.Sequence) bool { return s.Length == got }); n+1 < len(r) && r[n+1].Length == got {
				equal++
			}
			smooth := 1 + rng.IntN(999)
			want := float64(v.Boundary) + float64(smooth)/1000*float64(got-v.Boundary)
			if to := policy.refiner(partition.Damping{Smoothing: smooth}).Refine(v); math.Abs(float64(to)-want) > 1 {
				t.Fatalf("%s: input %d: smoothed by %d ‰ from %v to %v: %v, want %v", name, i, smooth, v.Boundary, got, to, want)
			}
		}
		t.Logf("%s: %d inputs: %d moved, %d frozen, %d at a length of several requests", name, inputs, moved, frozen, equal)
		if moved < inputs/2 || frozen < inputs/50 || equal < inputs/10 {
			t.Errorf("%s: the inputs are too easy", name)
		}
	}
}

// randomBoundary draws the view of a boundary with few requests.
func randomBoundary(rng *rand.Rand) policies.BoundaryView {
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
	return policies.BoundaryView{
		Boundary: policies.Tokens(1 + rng.IntN(5000)), High: policies.Unbounded, QoE: m,
		Local: random(rng.IntN(12)), Next: random(rng.IntN(40)), Peers: 1 + rng.IntN(4), Successors: rng.IntN(5), // 0 counts as 1
	}
}

// byLength returns the set sorted by length.
func byLength(set []policies.Sequence) []policies.Sequence {
	return slices.SortedFunc(slices.Values(set), func(a, b policies.Sequence) int {
		return cmp.Or(cmp.Compare(a.Length, b.Length), cmp.Compare(a.Input, b.Input))
	})
}
