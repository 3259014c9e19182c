// Package leastsquares finds the non-negative coefficients of a linear model that fit measurements best.
//
// Columns may differ by many orders of magnitude. It is exact and has no iterations and no tolerance: with at
// most MaxColumns coefficients it solves the problem for every subset of them.
package leastsquares

import (
	"errors"
	"fmt"
	"math"

	"gonum.org/v1/gonum/mat"
)

// MaxColumns bounds the coefficients: there are 2^MaxColumns subsets of them.
const MaxColumns = 8

// Row is one measurement: Y ≈ Σ X[i]·coefficient[i].
type Row struct {
	X []float64
	Y float64
	// Weight multiplies the row's error: 1/Y minimises relative errors, 1 absolute ones. It must be positive.
	Weight float64
}

// Solution is the best fit.
type Solution struct {
	Coefficients []float64
	Squares      float64 // Σ (Weight·(Σ X·c − Y))², the minimum
	// Covariance is that of the coefficients without the bound of 0, if the errors of the rows are independent
	// and, by their weights, of one variance. It is zero if the rows do not determine it.
	Covariance *mat.SymDense
}

// NonNegative minimises Σ (Weight·(Σ X·c − Y))² over all c ≥ 0. All rows must have the same number of columns.
//
// It solves the unconstrained problem for every subset of the columns and keeps the best solution without a
// negative coefficient.
func NonNegative(rows []Row) (Solution, error) {
	if len(rows) == 0 {
		return Solution{}, errors.New("no measurements")
	}
	k := len(rows[0].X)
	if k > MaxColumns {
		return Solution{}, fmt.Errorf("internal error: %d coefficients, more than %d", k, MaxColumns)
	}
	if len(rows) < k {
		return Solution{}, fmt.Errorf("fewer measurements (%d) than coefficients (%d)", len(rows), k)
	}
	r, scale := reduce(rows, k)
	best := Solution{Squares: math.Inf(1)}
	for set := 1; set < 1<<k; set++ {
		var columns []int
		for j := range k {
			if set>>j&1 == 1 {
				columns = append(columns, j)
			}
		}
		if s, ok := solve(r, scale, columns); ok && s.Squares < best.Squares {
			best = s
		}
	}
	if best.Coefficients == nil {
		return Solution{}, errors.New("the measurements determine no non-negative coefficients")
	}
	best.Covariance = mat.NewSymDense(k, nil)
	if len(rows) > k {
		covariance(best.Covariance, r, scale, best.Squares/float64(len(rows)-k))
	}
	return best, nil
}

// reduce returns a small matrix [A|b] with the same least-squares solutions as the weighted rows, by QR, and
// the largest entry of each column of A, by which the column was divided.
func reduce(rows []Row, k int) (*mat.Dense, []float64) {
	// With rows of zeros there are at least as many rows as columns.
	a := mat.NewDense(max(len(rows), k+1), k+1, nil)
	scale := make([]float64, k)
	for i, row := range rows {
		for j, x := range row.X {
			a.Set(i, j, x*row.Weight)
			scale[j] = max(scale[j], math.Abs(x*row.Weight))
		}
		a.Set(i, k, row.Y*row.Weight)
	}
	for j, s := range scale {
		if s > 0 {
			for i := range rows {
				a.Set(i, j, a.At(i, j)/s)
			}
		}
	}
	var qr mat.QR
	qr.Factorize(a)
	var r mat.Dense
	qr.RTo(&r)
	return mat.DenseCopyOf(r.Slice(0, k+1, 0, k+1)), scale
}

// solve fits the given columns; the others stay 0. It returns false for a singular system or a negative
// coefficient.
func solve(r *mat.Dense, scale []float64, columns []int) (Solution, bool) {
	k, n := len(scale), len(columns)
	a := mat.NewDense(k+1, n, nil)
	for j, c := range columns {
		if scale[c] == 0 {
			return Solution{}, false
		}
		a.SetCol(j, mat.Col(nil, c, r))
	}
	b := r.ColView(k)
	var x mat.VecDense
	if err := x.SolveVec(a, b); err != nil {
		return Solution{}, false
	}
	s := Solution{Coefficients: make([]float64, k)}
	for j, c := range columns {
		v := x.AtVec(j) / scale[c]
		if !(v >= 0) || math.IsInf(v, 0) {
			return Solution{}, false
		}
		s.Coefficients[c] = v
	}
	var residual mat.VecDense
	residual.MulVec(a, &x)
	residual.SubVec(&residual, b)
	s.Squares = mat.Dot(&residual, &residual)
	return s, true
}

// covariance sets c to variance·(AᵀA)⁻¹, A being all but the last column of r before it was scaled.
func covariance(c *mat.SymDense, r *mat.Dense, scale []float64, variance float64) {
	k := len(scale)
	a := r.Slice(0, k+1, 0, k)
	var product, inverse mat.Dense
	product.Mul(a.T(), a)
	if err := inverse.Inverse(&product); err != nil {
		return
	}
	for i := range k {
		for j := range i + 1 {
			c.SetSym(i, j, variance*inverse.At(i, j)/scale[i]/scale[j])
		}
	}
}
