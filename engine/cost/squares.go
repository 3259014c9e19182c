package cost

import (
	"errors"
	"math"
	"slices"

	"gonum.org/v1/gonum/mat"
)

// row is one measurement: time ≈ Σ x[i]·coefficient[i].
type row struct {
	x []float64
	t float64 // seconds, positive
}

// leastSquares finds the non-negative coefficients that minimise the squared
// *relative* error over the rows: a 10 µs batch and a 10 ms batch count alike.
// All rows have the same, small number of columns, at most 4.
//
// It solves the unconstrained problem for every subset of the columns and
// keeps the best solution without a negative coefficient. With at most 15
// subsets that is exact and simpler than an active-set method.
func leastSquares(rows []row) ([]float64, error) {
	if len(rows) == 0 {
		return nil, errors.New("no measurements")
	}
	k := len(rows[0].x)
	if len(rows) < k {
		return nil, errors.New("fewer measurements than coefficients")
	}
	var best []float64
	least := math.Inf(1)
	for set := 1; set < 1<<k; set++ {
		var columns []int
		for j := range k {
			if set>>j&1 == 1 {
				columns = append(columns, j)
			}
		}
		c, ok := solve(rows, columns, k)
		if !ok {
			continue
		}
		sum := 0.0
		for _, r := range rows {
			e := relative(r, c)
			sum += e * e
		}
		if sum < least {
			least, best = sum, c
		}
	}
	if best == nil {
		return nil, errors.New("the measurements determine no non-negative coefficients")
	}
	return best, nil
}

// solve fits the given columns by QR; the others stay 0. It reports false
// for a singular system or a negative coefficient.
func solve(rows []row, columns []int, k int) ([]float64, bool) {
	a := mat.NewDense(len(rows), len(columns), nil)
	b := mat.NewVecDense(len(rows), nil)
	// Columns differ by ten orders of magnitude (1 against Σ KV): scaled to
	// their largest entry the system is well conditioned.
	scale := make([]float64, len(columns))
	for i, r := range rows {
		b.SetVec(i, 1)
		for j, c := range columns {
			a.Set(i, j, r.x[c]/r.t)
			scale[j] = max(scale[j], math.Abs(r.x[c]/r.t))
		}
	}
	for j, s := range scale {
		if s == 0 {
			return nil, false
		}
		for i := range rows {
			a.Set(i, j, a.At(i, j)/s)
		}
	}
	var x mat.VecDense
	if err := x.SolveVec(a, b); err != nil {
		return nil, false
	}
	out := make([]float64, k)
	for j, c := range columns {
		v := x.AtVec(j) / scale[j]
		if !(v >= 0) || math.IsInf(v, 0) {
			return nil, false
		}
		out[c] = v
	}
	return out, true
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
func errorOf(rows []row, c []float64) FitError {
	e := make([]float64, len(rows))
	for i, r := range rows {
		e[i] = math.Abs(relative(r, c))
	}
	slices.Sort(e)
	at := func(q float64) float64 { return e[min(len(e)-1, int(q*float64(len(e))))] }
	return FitError{P50: at(0.5), P90: at(0.9), Points: len(e)}
}
