package costfit

import (
	"math"
	"slices"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/profiling"
)

// row is one measurement: time ≈ Σ x[i]·coefficient[i].
type row struct {
	x []float64
	t float64 // seconds, positive
}

// leastSquares finds the non-negative coefficients that minimise the squared
// *relative* error over the rows: a 10 µs batch and a 10 ms batch count alike.
func leastSquares(rows []row) ([]float64, error) {
	weighted := make([]profiling.Row, len(rows))
	for i, r := range rows {
		weighted[i] = profiling.Row{X: r.x, Y: r.t, Weight: 1 / r.t}
	}
	s, err := profiling.NonNegative(weighted)
	return s.Coefficients, err
}

// relative is (model − measured) / measured.
func relative(r row, c []float64) float64 {
	t := 0.0
	for i, x := range r.x {
		t += float64(x * c[i])
	}
	return (t - r.t) / r.t
}

// errorOf summarises the absolute relative errors of c over the rows.
func errorOf(rows []row, c []float64) cost.FitError {
	e := make([]float64, len(rows))
	for i, r := range rows {
		e[i] = math.Abs(relative(r, c))
	}
	slices.Sort(e)
	at := func(q float64) float64 { return e[min(len(e)-1, int(q*float64(len(e))))] }
	return cost.FitError{P50: at(0.5), P90: at(0.9), Points: len(e)}
}
