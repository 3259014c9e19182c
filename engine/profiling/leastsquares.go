package profiling

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/stat"
)

// MaxColumns bounds the coefficients: there are 2^MaxColumns subsets of them.
const MaxColumns = 8

// Row is one measurement: Y ≈ Σ X[i]·coefficient[i].
type Row struct {
	X []float64
	Y float64
	// Weight multiplies the row's error: 1/Y minimises relative errors, 1 absolute ones. It must be positive.
	Weight float64
	// Group numbers rows that were disturbed together: see LeaveOneOut.
	Group int
}

// Solution is the best fit.
type Solution struct {
	Coefficients []float64
	Squares      float64 // Σ (Weight·(Σ X·c − Y))², the minimum
}

// NonNegative finds the non-negative coefficients of a linear model that fit measurements best. It
// minimises Σ (Weight·(Σ X·c − Y))² over all c ≥ 0. All rows must have the same number of columns.
//
// Columns may differ by many orders of magnitude. It is exact and has no iterations and no tolerance: it solves the
// unconstrained problem for every subset of the columns and keeps the best solution without a negative coefficient.
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

// LeaveOneOut fits the rows once for every group, without the rows of that group and without the bound of 0, and
// returns the coefficients of each fit. The result is nil if there are fewer than two groups, or if the rows of
// all but one do not determine the coefficients.
func LeaveOneOut(rows []Row) [][]float64 {
	groups := make(map[int]bool)
	for _, r := range rows {
		groups[r.Group] = true
	}
	var fits [][]float64
	for _, g := range slices.Sorted(maps.Keys(groups)) {
		rest := slices.DeleteFunc(slices.Clone(rows), func(r Row) bool { return r.Group == g })
		if len(rest) < len(rows[0].X) {
			return nil
		}
		c, ok := unbounded(rest)
		if !ok {
			return nil
		}
		fits = append(fits, c)
	}
	if len(fits) < 2 {
		return nil
	}
	return fits
}

// singular is what rounding leaves of a column that depends on the others.
const singular = 1e-10

// unbounded fits the rows without the bound of 0.
func unbounded(rows []Row) ([]float64, bool) {
	k := len(rows[0].X)
	r, scale := reduce(rows, k)
	for j := range k { // r is triangular, and no column was longer than the number of rows
		if !(math.Abs(r.At(j, j)) > singular) {
			return nil, false
		}
	}
	var x mat.VecDense
	if x.SolveVec(r.Slice(0, k+1, 0, k), r.ColView(k)) != nil {
		return nil, false
	}
	for j, s := range scale {
		x.SetVec(j, x.AtVec(j)/s)
	}
	return x.RawVector().Data, true
}

// Jackknife returns the standard error of a quantity that is computed from the coefficients, by the jackknife:
// from the differences between the fits of LeaveOneOut. It allows for errors that the rows of a group have in
// common. It is +Inf if there are no fits, or if one of them does not determine the quantity.
func Jackknife(fits [][]float64, quantity func(coefficients []float64) float64) float64 {
	values := make([]float64, len(fits))
	for i, c := range fits {
		values[i] = quantity(c)
	}
	n := float64(len(fits))
	e := math.Sqrt((n - 1) / n * (n - 1) * stat.Variance(values, nil))
	if len(fits) < 2 || math.IsNaN(e) {
		return math.Inf(1)
	}
	return e
}
