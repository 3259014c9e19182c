package measure

import (
	"errors"
	"fmt"
	"math"
)

// Kappa is the cost of unequal lengths in a batch: the fit of
//
//	seconds = Base + PerToken·(ΣL + Kappa·(Lmax − Lmean))
//
// to points of one batch size, the heterogeneity of the paper's figure 2 as engine/cost
// has it.
type Kappa struct {
	Kappa    float64 `json:"kappa"`
	StdErr   float64 `json:"standard_error"` // of Kappa, by the delta method
	Base     float64 `json:"base_seconds"`
	PerToken float64 `json:"seconds_per_token"`
	Points   int     `json:"points"`
}

// Text returns Kappa with its standard error.
func (k Kappa) Text() string { return fmt.Sprintf("%.2f ± %.2f", k.Kappa, k.StdErr) }

// Skew returns Lmax − Lmean.
func (p Point) Skew() float64 { return float64(p.Longest) - float64(p.Tokens)/float64(p.Batch) }

// FitKappa fits by least squares. The sums and the spreads of the points must differ
// independently.
func FitKappa(points []Point) (Kappa, error) {
	if len(points) < 4 {
		return Kappa{}, errors.New("kappa: at least four points are required")
	}
	var scaleT, scaleS float64 // so that the columns have similar magnitudes
	for _, p := range points {
		if p.Batch != points[0].Batch || p.Batch < 1 {
			return Kappa{}, errors.New("kappa: the points have different batch sizes")
		}
		scaleT, scaleS = max(scaleT, float64(p.Tokens)), max(scaleS, p.Skew())
	}
	if scaleT <= 0 || scaleS <= 0 {
		return Kappa{}, errors.New("kappa: no batch has unequal lengths")
	}
	row := func(p Point) [3]float64 { return [3]float64{1, float64(p.Tokens) / scaleT, p.Skew() / scaleS} }
	var m [3][3]float64
	var v [3]float64
	for _, p := range points {
		x := row(p)
		for i := range x {
			v[i] += float64(x[i] * p.Seconds)
			for j := range x {
				m[i][j] += float64(x[i] * x[j])
			}
		}
	}
	inv, ok := invert(m)
	if !ok {
		return Kappa{}, errors.New("kappa: the sums or the spreads of the lengths do not differ enough")
	}
	var b [3]float64
	for i := range b {
		for j := range v {
			b[i] += float64(inv[i][j] * v[j])
		}
	}
	residual := 0.0
	for _, p := range points {
		x := row(p)
		d := p.Seconds - (b[0] + float64(b[1]*x[1]) + float64(b[2]*x[2]))
		residual += float64(d * d)
	}
	residual /= float64(max(1, len(points)-3))
	token, skew := b[1]/scaleT, b[2]/scaleS
	if token <= 0 {
		return Kappa{}, errors.New("kappa: more tokens did not take longer: the times are noise")
	}
	k := skew / token
	vtt, vss, vts := inv[1][1]/scaleT/scaleT, inv[2][2]/scaleS/scaleS, inv[1][2]/scaleT/scaleS
	variance := residual * (vss - 2*k*vts + k*k*vtt) / token / token
	return Kappa{Kappa: k, StdErr: math.Sqrt(max(0, variance)), Base: b[0], PerToken: token, Points: len(points)}, nil
}

// invert inverts a matrix by Gauss-Jordan elimination with pivots.
func invert(m [3][3]float64) (inv [3][3]float64, ok bool) {
	for i := range inv {
		inv[i][i] = 1
	}
	for c := range m {
		best := c
		for r := c + 1; r < 3; r++ {
			if math.Abs(m[r][c]) > math.Abs(m[best][c]) {
				best = r
			}
		}
		m[c], m[best] = m[best], m[c]
		inv[c], inv[best] = inv[best], inv[c]
		if math.Abs(m[c][c]) < 1e-12 {
			return inv, false
		}
		p := m[c][c]
		for j := range 3 {
			m[c][j] /= p
			inv[c][j] /= p
		}
		for r := range m {
			if f := m[r][c]; r != c {
				for j := range 3 {
					m[r][j] -= float64(f * m[c][j])
					inv[r][j] -= float64(f * inv[c][j])
				}
			}
		}
	}
	return inv, true
}
