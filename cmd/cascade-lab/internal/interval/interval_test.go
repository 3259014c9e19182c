package interval

import (
	"math"
	"math/rand/v2"
	"testing"
)

// nearInterval reports whether two figures are equal but for rounding.
func nearInterval(a, b float64) bool { return math.Abs(a-b) <= 1e-3*math.Max(1, math.Abs(b)) }

// TestMean compares with intervals computed by hand: t(0.975) is 12.706, 2.776 and 2.262 for 1, 4 and 9 degrees of
// freedom, by the printed table.
func TestMean(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   Interval
	}{
		{nil, Interval{}},
		{[]float64{3}, Interval{3, 3, 3, 1}},
		{[]float64{1, 3}, Interval{2, 2 - 12.7062, 2 + 12.7062, 2}},                        // s = √2, s/√2 = 1
		{[]float64{1, 2, 3, 4, 5}, Interval{3, 3 - 2.7764*0.70711, 3 + 2.7764*0.70711, 5}}, // s = √2.5
		{[]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, Interval{5.5, 5.5 - 2.2622*0.95743, 5.5 + 2.2622*0.95743, 10}},
		{[]float64{7, 7, 7, 7, 7}, Interval{7, 7, 7, 5}},
	} {
		got := Mean(c.values)
		if !nearInterval(got.Mean, c.want.Mean) || !nearInterval(got.Low, c.want.Low) || !nearInterval(got.High, c.want.High) || got.Runs != c.want.Runs {
			t.Errorf("%v: %+v, want %+v", c.values, got, c.want)
		}
	}
}

// TestCoverage draws samples of a known mean: the share of intervals that contain it is Level.
func TestCoverage(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const samples = 20_000
	for _, runs := range []int{2, 5, 10} {
		covered, values := 0, make([]float64, runs)
		for range samples {
			for i := range values {
				values[i] = 10 + 3*rng.NormFloat64()
			}
			if m := Mean(values); m.Low <= 10 && 10 <= m.High {
				covered++
			}
		}
		// Four standard errors of a share of 0.95.
		if share := float64(covered) / samples; math.Abs(share-Level) > 4*math.Sqrt(Level*(1-Level)/samples) {
			t.Errorf("%d runs: %.4f of the intervals contain the mean, want %v", runs, share, Level)
		}
	}
}

// TestRatio checks that a difference shows which the seeds' own differences would hide.
func TestRatio(t *testing.T) {
	base := []float64{1, 10, 100, 1000, 5}
	values := []float64{0.9, 9.2, 88, 910, 4.5}
	r := Ratio(values, base)
	if r.Against(1) != Below || !nearInterval(r.Mean, math.Pow(0.9*0.92*0.88*0.91*0.9, 0.2)) {
		t.Errorf("%+v: %v", r, r.Against(1))
	}
	if a, b := Mean(values), Mean(base); a.High < b.Low {
		t.Error("the means differ by themselves: the test shows nothing")
	}
	if back := Ratio(base, values); back.Against(1) != Above || !nearInterval(back.Low, 1/r.High) || !nearInterval(back.High, 1/r.Low) {
		t.Errorf("the other way round: %+v, want the inverse of %+v", back, r)
	}
	if r := Ratio([]float64{1, 0}, []float64{1, 1}); r != (Interval{}) {
		t.Errorf("a figure that was not measured: %+v", r)
	}
	if r := Ratio(nil, nil); r != (Interval{}) {
		t.Errorf("no runs: %+v", r)
	}
}

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		i    Interval
		want Verdict
	}{
		{Interval{0.8, 0.7, 0.99, 5}, Below},
		{Interval{0.8, 0.7, 1, 5}, Undecided},
		{Interval{1.2, 1, 1.4, 5}, Undecided},
		{Interval{1.2, 1.01, 1.4, 5}, Above},
		{Interval{0.8, 0.7, 0.9, 4}, Undecided},
		{Interval{1.2, 1.1, 1.3, 4}, Undecided},
		{Interval{}, Undecided},
	} {
		if got := c.i.Against(1); got != c.want {
			t.Errorf("%+v: %v, want %v", c.i, got, c.want)
		}
	}
}
