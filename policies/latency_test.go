package policies

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestLatencyQuantile compares quantiles with those of the sorted durations, of two front ends together.
func TestLatencyQuantile(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var a, b LatencyCounts
	var all []Micros
	for i := range 2000 {
		d := Micros(20_000 * (1 + 9*rng.ExpFloat64()))
		all = append(all, d)
		if i%2 == 0 {
			a.Add(d)
		} else {
			b.Add(d)
		}
	}
	slices.Sort(all)
	sum := a.Plus(b)
	for _, q := range []float64{0.5, 0.95, 0.99} {
		want := all[int(q*float64(len(all)))-1]
		if got := 1e6 * sum.Quantile(q); got < 0.8*float64(want) || got > 1.25*float64(want) {
			t.Errorf("quantile %v is %v, want about %v", q, got, want)
		}
	}
	if sum.Total() != 2000 || sum.Since(a) != b {
		t.Errorf("%d durations; those since a are not b", sum.Total())
	}
	if got := (LatencyCounts{}).Quantile(0.5); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

// TestEnds counts durations below the first bucket and beyond the last, and begins anew.
func TestEnds(t *testing.T) {
	var c LatencyCounts
	for _, d := range []Micros{-1_000_000, 0, 1000, 1001, 86_400_000_000} {
		c.Add(d)
	}
	if c[0] != 3 || c[1] != 1 || c[LatencyBuckets-1] != 1 {
		t.Errorf("counts %v", c)
	}
	if restarted := (LatencyCounts{2: 5}); restarted.Since(c) != restarted {
		t.Error("a front end that began anew is compared with its former process")
	}
}
