package partition

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/policytest"
)

var model = policytest.H200QoE()

// random makes n sequences; few distinct lengths, so that ties are common.
func random(rng *rand.Rand, n int) []policies.Sequence {
	out := make([]policies.Sequence, n)
	for i := range out {
		l := policies.Tokens(1 + 50*rng.IntN(40))
		out[i] = policies.Sequence{Input: policies.Tokens(rng.Int64N(int64(l) + 1)), Length: l}
	}
	return out
}

// brute tries every boundary value, each with fresh sums.
func brute(local, next []policies.Sequence, wl, wr, left, right int) (best float64, quality func(policies.Tokens) float64) {
	q := func(b policies.Tokens) float64 {
		sum := 0.0
		for side, k := range []int{left, right} {
			var n, i1, i2, l float64
			add := func(s policies.Sequence, w int) {
				if (s.Length < b) == (side == 0) {
					f, in := float64(w), float64(s.Input)
					n, i1, i2, l = n+f, i1+f*in, i2+f*in*in, l+f*float64(s.Length)
				}
			}
			for _, s := range local {
				add(s, wl)
			}
			for _, s := range next {
				add(s, wr)
			}
			sum += n*model.D0 + n*(model.D1*n+model.D2*i1+model.D3*i2+model.D4*l)/float64(k)
		}
		return sum
	}
	best = math.Inf(1)
	for b := policies.Tokens(0); b < 2100; b++ {
		// A boundary above all lengths is none: R[b] does not exist there.
		if slices.ContainsFunc(slices.Concat(local, next), func(s policies.Sequence) bool { return s.Length >= b }) {
			best = min(best, q(b))
		}
	}
	return best, q
}

// border is undamped, so that the proposal is the split itself.
func border(local, next []policies.Sequence, k1, k2 int) policies.BoundaryView {
	return policies.BoundaryView{Boundary: 1000, Low: -1, High: 1 << 40, Local: local, Next: next, Peers: k1, Successors: k2, QoE: model}
}

var undamped = Damping{Smoothing: 1000, Freeze: 1}

// TestWeighted compares WeightedRefiner with a search over all boundaries.
func TestWeighted(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 2))
	for range 60 {
		k1, k2 := 1+rng.IntN(4), 1+rng.IntN(4)
		local, next := random(rng, 1+rng.IntN(25)), random(rng, rng.IntN(60))

		at := WeightedRefiner{undamped}.Refine(border(local, next, k1, k2))
		if best, q := brute(local, next, k1, 1, k1, k2); q(at) > best*(1+1e-12) {
			t.Fatalf("weighted: boundary %v costs %v, the best %v", at, q(at), best)
		}
	}
}

func lengths(xs ...policies.Tokens) (out []policies.Sequence) {
	for _, x := range xs {
		out = append(out, policies.Sequence{Input: 1, Length: x})
	}
	return out
}

func TestDamping(t *testing.T) {
	// Ten short requests and ten long ones: the split is at the long ones.
	short, long := lengths(10, 10, 10, 10, 10, 10), lengths(2000, 2000, 2000, 2000, 2000, 2000)
	b := border(short, long, 1, 1)
	if got := (PaperRefiner{}).Refine(b); got != 1300 {
		t.Errorf("from 1000 towards 2000: %v, want 1300", got)
	}
	b.Boundary = 3000
	if got := (PaperRefiner{Damping{Smoothing: 100}}).Refine(b); got != 2900 {
		t.Errorf("from 3000 towards 2000: %v, want 2900", got)
	}
	b.Boundary = policies.Unbounded - 1
	b.High = policies.Unbounded
	if got := (PaperRefiner{}).Refine(b); got >= policies.Unbounded-1 || got < policies.Unbounded/2 {
		t.Errorf("from the largest boundary: %v", got)
	}

	b = border(lengths(10, 10), lengths(2000, 2000), 1, 1)
	if got := (PaperRefiner{}).Refine(b); got != 1000 {
		t.Errorf("four requests moved the boundary to %v", got)
	}
	b.Local = lengths(10, 10, 10)
	if got := (PaperRefiner{}).Refine(b); got == 1000 {
		t.Error("five requests do not move the boundary")
	}
	b = border(lengths(10, 10), lengths(2000, 2000, 2000, 2000, 2000), 2, 2)
	if got := (WeightedRefiner{}).Refine(b); got != 1000 {
		t.Errorf("two and a half requests a side moved the boundary to %v", got)
	}
	if got := (PaperRefiner{Damping{Freeze: -1}}).Refine(border(nil, nil, 1, 1)); got != 1000 {
		t.Errorf("no request at all moved the boundary to %v", got)
	}

	// A split outside the two ranges stays inside them.
	b = border(short, long, 1, 1)
	b.High = 1200
	if got := (PaperRefiner{undamped}).Refine(b); got != 1199 {
		t.Errorf("above the next stage's end: %v", got)
	}
	b = border(short, lengths(20, 20, 20), 1, 1)
	b.Low = 990
	if got := (PaperRefiner{undamped}).Refine(b); got != 991 {
		t.Errorf("below the own stage's start: %v", got)
	}
}

// TestPure checks that the caller's slices stay and that order does not matter.
func TestPure(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for range 50 {
		b := border(random(rng, 30), random(rng, 30), 1+rng.IntN(3), 1+rng.IntN(3))
		before := b
		before.Local, before.Next = slices.Clone(b.Local), slices.Clone(b.Next)
		for _, r := range []policies.Refiner{PaperRefiner{}, WeightedRefiner{}} {
			got := r.Refine(b)
			if !reflect.DeepEqual(b, before) {
				t.Fatal("the border was changed")
			}
			mixed := before
			mixed.Local, mixed.Next = slices.Clone(b.Local), slices.Clone(b.Next)
			rng.Shuffle(30, func(i, j int) { mixed.Local[i], mixed.Local[j] = mixed.Local[j], mixed.Local[i] })
			rng.Shuffle(30, func(i, j int) { mixed.Next[i], mixed.Next[j] = mixed.Next[j], mixed.Next[i] })
			if again := r.Refine(mixed); again != got {
				t.Fatalf("%T: %v in one order, %v in another", r, got, again)
			}
		}
	}
}
