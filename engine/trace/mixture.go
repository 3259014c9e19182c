package trace

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// The expectation-maximisation fit of the length mixture.
const (
	maxRounds = 300
	// converged ends the fit: the gain of mean log likelihood of one round.
	converged = 1e-6
	// minSD keeps a component from collapsing onto one length: 1 % of it.
	minSD = 0.01
	// minWeight drops components that explain next to nothing.
	minWeight = 1e-4
	// maxCorr keeps covariances invertible.
	maxCorr = 0.999
)

// point is one request in the plane of the mixture.
type point struct{ x, y float64 } // ln input, ln output

// fitMixture fits k bivariate lognormals to the requests' lengths by
// expectation maximisation (Dempster, Laird, Rubin 1977), started from
// k-means++ centres. Whole numbers are blurred by ±½ token first: else a
// single frequent short length would be a spike of infinite density.
func fitMixture(requests []Request, k int, rng *rand.Rand) []Lognormal {
	points := make([]point, len(requests))
	blur := func(t float64) float64 { return math.Log(t - 0.5 + rng.Float64()) }
	for i, r := range requests {
		points[i] = point{blur(float64(r.Input)), blur(float64(r.Output))}
	}
	mix := startMixture(points, k, rng)
	shares := make([]float64, len(points)*len(mix))
	before := math.Inf(-1)
	for range maxRounds {
		likelihood := expect(points, mix, shares)
		maximise(points, mix, shares)
		if likelihood-before < converged {
			break
		}
		before = likelihood
	}
	mix = slices.DeleteFunc(mix, func(l Lognormal) bool { return !(l.Weight >= minWeight) })
	slices.SortFunc(mix, func(a, b Lognormal) int { return cmp.Compare(a.Input, b.Input) })
	for i := range mix {
		mix[i] = mix[i].rounded()
	}
	return mix
}

// startMixture spreads k centres over the points: each next one is drawn in
// proportion to the squared distance from those before (k-means++).
func startMixture(points []point, k int, rng *rand.Rand) []Lognormal {
	mix := make([]Lognormal, 0, k)
	distance := make([]float64, len(points))
	for i := range distance {
		distance[i] = 1
	}
	for range k {
		centre := points[newPicker(distance).pick(rng)]
		mix = append(mix, Lognormal{Weight: 1 / float64(k), Input: centre.x, Output: centre.y, InputSD: 0.5, OutputSD: 0.5})
		sum := 0.0
		for i, p := range points {
			d := (p.x-centre.x)*(p.x-centre.x) + (p.y-centre.y)*(p.y-centre.y)
			if len(mix) == 1 || d < distance[i] {
				distance[i] = d
			}
			sum += distance[i]
		}
		if sum == 0 {
			break // all points are centres already
		}
	}
	return mix
}

// expect writes each component's share in each point and returns the mean log
// likelihood.
func expect(points []point, mix []Lognormal, shares []float64) float64 {
	k := len(mix)
	type prepared struct{ log, ix, iy, c, ic float64 }
	ready := make([]prepared, k)
	for j, l := range mix {
		det := 1 - l.Corr*l.Corr
		ready[j] = prepared{
			log: math.Log(l.Weight) - math.Log(2*math.Pi*l.InputSD*l.OutputSD) - 0.5*math.Log(det),
			ix:  1 / l.InputSD, iy: 1 / l.OutputSD, c: l.Corr, ic: -0.5 / det,
		}
	}
	total := 0.0
	for i, p := range points {
		row := shares[i*k : (i+1)*k]
		top := math.Inf(-1)
		for j, r := range ready {
			u, v := (p.x-mix[j].Input)*r.ix, (p.y-mix[j].Output)*r.iy
			row[j] = r.log + r.ic*(u*u-2*r.c*u*v+v*v)
			top = math.Max(top, row[j])
		}
		sum := 0.0
		for j := range row {
			row[j] = math.Exp(row[j] - top)
			sum += row[j]
		}
		for j := range row {
			row[j] /= sum
		}
		total += top + math.Log(sum)
	}
	return total / float64(len(points))
}

// maximise sets each component to the moments of its shares.
func maximise(points []point, mix []Lognormal, shares []float64) {
	k := len(mix)
	for j := range mix {
		var w, x, y float64
		for i, p := range points {
			s := shares[i*k+j]
			w += s
			x += s * p.x
			y += s * p.y
		}
		if !(w > 0) {
			mix[j].Weight = math.SmallestNonzeroFloat64
			continue
		}
		x, y = x/w, y/w
		var xx, yy, xy float64
		for i, p := range points {
			s := shares[i*k+j]
			xx += s * (p.x - x) * (p.x - x)
			yy += s * (p.y - y) * (p.y - y)
			xy += s * (p.x - x) * (p.y - y)
		}
		sx, sy := math.Max(math.Sqrt(xx/w), minSD), math.Max(math.Sqrt(yy/w), minSD)
		corr := math.Min(math.Max(xy/w/(sx*sy), -maxCorr), maxCorr)
		mix[j] = Lognormal{Weight: w / float64(len(points)), Input: x, Output: y, InputSD: sx, OutputSD: sy, Corr: corr}
	}
}

// rounded keeps the digits that a reader can use. Means of very short lengths
// may lie a little under ln 1 and are moved to it.
func (l Lognormal) rounded() Lognormal {
	r := func(x float64) float64 { return math.Round(x*1e4) / 1e4 }
	return Lognormal{
		Weight: r(l.Weight), Input: math.Max(0, r(l.Input)), Output: math.Max(0, r(l.Output)),
		InputSD: r(l.InputSD), OutputSD: r(l.OutputSD), Corr: r(l.Corr),
	}
}
