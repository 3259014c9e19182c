package profiling

import (
	"math"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/stat"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestNoBetterSolution compares the minimum with random other coefficients, and the coefficients of data without
// noise with those that made it.
func TestNoBetterSolution(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		k := 1 + rng.IntN(5)
		truth, noise := make([]float64, k), float64(rng.IntN(2))
		for j := range truth {
			truth[j] = rng.Float64() - 0.3*noise
		}
		rows := make([]Row, k+rng.IntN(20))
		for i := range rows {
			rows[i] = Row{X: make([]float64, k), Y: noise * rng.NormFloat64(), Weight: 0.5 + rng.Float64()}
			for j := range k {
				rows[i].X[j] = math.Pow(10, float64(2*j)) * rng.Float64()
				rows[i].Y += truth[j] * rows[i].X[j]
			}
		}
		squares := func(c []float64) (sum float64) {
			for _, r := range rows {
				e := -r.Y
				for j, x := range r.X {
					e += x * c[j]
				}
				sum += e * e * r.Weight * r.Weight
			}
			return sum
		}
		s, err := NonNegative(rows)
		if err != nil && noise > 0 {
			continue // all coefficients would be negative
		}
		testkit.NoError(t, err)
		least := squares(s.Coefficients)
		if math.Abs(least-s.Squares) > 1e-6*(1+least) {
			t.Fatalf("the sum of squares is %v, not %v", least, s.Squares)
		}
		for range 200 {
			other := make([]float64, k)
			for j := range other {
				other[j] = max(0, s.Coefficients[j]+math.Pow(10, -float64(2*j)-3*rng.Float64())*rng.NormFloat64())
			}
			if squares(other) < least-1e-6*(1+least) {
				t.Fatalf("%v is better than %v", other, s.Coefficients)
			}
		}
		for j, c := range s.Coefficients {
			if noise == 0 && math.Abs(c-truth[j]) > 1e-6 {
				t.Fatalf("coefficient %d is %v, not %v", j, c, truth[j])
			}
		}
	}
}

// TestJackknife compares the standard error of a slope, and of a ratio, with the spread of the estimates from
// many data sets, whose rows have errors of their own or in common with their group.
func TestJackknife(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	slope := func(c []float64) float64 { return c[1] }
	ratio := func(c []float64) float64 { return c[1] / c[0] }
	for name, common := range map[string]float64{"independent": 0, "common": 1} {
		for _, quantity := range []func([]float64) float64{slope, ratio} {
			var estimates []float64
			predicted := 0.0
			const sets = 500
			for range sets {
				rows := make([]Row, 60)
				shared := 0.0
				for i := range rows {
					if i%5 == 0 {
						shared = rng.NormFloat64()
					}
					x := float64(i)
					rows[i] = Row{X: []float64{1, x}, Y: 50 + 2*x + common*shared + (1-common)*rng.NormFloat64(), Weight: 1, Group: i / 5}
				}
				estimates = append(estimates, quantity(testkit.Must(NonNegative(rows)).Coefficients))
				e := Jackknife(LeaveOneOut(rows), quantity)
				predicted += e * e / sets
			}
			// The jackknife errs on the side of caution, above all at the ends.
			if r := stat.Variance(estimates, nil) / predicted; r < 0.6 || r > 1.2 {
				t.Errorf("%s errors: the variance is %.2f times the predicted one", name, r)
			}
		}
	}
}

// TestUndetermined leaves a group out that alone determines a coefficient.
func TestUndetermined(t *testing.T) {
	rows := []Row{{X: []float64{1, 1}, Y: 1, Weight: 1}, {X: []float64{1, 1}, Y: 1, Weight: 1, Group: 1}, {X: []float64{1, 1}, Y: 2, Weight: 1, Group: 1}, {X: []float64{1, 5}, Y: 2, Weight: 1, Group: 2}}
	first := func(c []float64) float64 { return c[0] }
	if e := Jackknife(LeaveOneOut(rows), first); !math.IsInf(e, 1) {
		t.Errorf("one group determines the slope: standard error %v", e)
	}
	for i := range rows {
		rows[i].Group = 0
	}
	if e := Jackknife(LeaveOneOut(rows), first); !math.IsInf(e, 1) {
		t.Errorf("one group: standard error %v", e)
	}
}

func TestLeastSquaresErrors(t *testing.T) {
	one := Row{X: []float64{1, 1}, Y: 1, Weight: 1}
	for want, rows := range map[string][]Row{
		"no measurements":                      nil,
		"fewer measurements":                   {one},
		"no non-negative coefficients":         {{X: []float64{1}, Y: -1, Weight: 1}},
		"internal error: 9 coefficients, more": {{X: make([]float64, 9)}},
	} {
		_, err := NonNegative(rows)
		testkit.WantError(t, err, want)
	}
}
