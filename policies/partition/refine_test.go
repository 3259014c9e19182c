package partition

import (
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

// border is undamped, so that the proposal is the split itself.
func border(local, next []policies.Sequence, k1, k2 int) policies.BoundaryView {
	return policies.BoundaryView{Boundary: 1000, Low: -1, High: 1 << 40, Local: local, Next: next, Peers: k1, Successors: k2, QoE: model}
}

var undamped = Damping{Smoothing: 1000, Freeze: 1}

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
	if got := (PaperRefiner{}).Refine(b); got != 1000 {
		t.Errorf("two requests of each side moved the boundary to %v", got)
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
		got := PaperRefiner{}.Refine(b)
		if !reflect.DeepEqual(b, before) {
			t.Fatal("the border was changed")
		}
		mixed := before
		mixed.Local, mixed.Next = slices.Clone(b.Local), slices.Clone(b.Next)
		rng.Shuffle(30, func(i, j int) { mixed.Local[i], mixed.Local[j] = mixed.Local[j], mixed.Local[i] })
		rng.Shuffle(30, func(i, j int) { mixed.Next[i], mixed.Next[j] = mixed.Next[j], mixed.Next[i] })
		if again := (PaperRefiner{}).Refine(mixed); again != got {
			t.Fatalf("%v in one order, %v in another", got, again)
		}
	}
}
