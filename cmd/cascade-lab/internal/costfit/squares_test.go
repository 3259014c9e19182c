package costfit

import "testing"

// TestReportedError: the error of a fit is that of the points, and not what the fit hopes for.
func TestReportedError(t *testing.T) {
	coefficients := []float64{1}
	var rows []row
	for i := range 100 { // off by 0 % to 99 %, both ways
		off := float64(i) / 100
		if i%2 == 1 {
			off = -off
		}
		rows = append(rows, row{x: []float64{1 + off}, t: 1})
	}
	got := errorOf(rows, coefficients)
	if !near(got.P50, 0.5, 1e-9) || !near(got.P90, 0.9, 1e-9) || got.Points != 100 {
		t.Errorf("error %+v, want a median of 50 %%, a p90 of 90 %%, 100 points", got)
	}

	// A profile says so: its measurements differ from every line by 10 %.
	for i := range rows {
		x := float64(1 + i/2)
		rows[i] = row{x: []float64{1, x}, t: (2 + 3*x) * []float64{0.9, 1.1}[i%2]}
	}
	c, err := leastSquares(rows)
	if err != nil {
		t.Fatal(err)
	}
	if got := errorOf(rows, c); got.P50 < 0.08 || got.P90 > 0.13 || got.P90 < got.P50 {
		t.Errorf("error %+v of points 10 %% off", got)
	}
}
