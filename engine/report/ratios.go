package report

import "math"

// Series is a named set of points.
type Series struct {
	Name   string
	Points []XY
}

// maxRatio is where axes of ratios end: points beyond it lie on the edge.
const maxRatio = 3

// Ratios draws pairs of ratios on logarithmic axes, on which twice and half are equally far from 1. Up to the
// limit, in both directions, the ground is pale green. Ratios beyond 3 and below 1/3 lie on the edge.
func Ratios(title, xName, yName string, all []Series, limit XY) (Picture, error) {
	edge := math.Log2(maxRatio)
	at := func(ratio float64) float64 { return min(max(math.Log2(ratio), -edge), edge) }
	f := Figure{Title: title, Width: 560}
	dots := make([][]XY, len(all))
	for i, s := range all {
		for _, xy := range s.Points {
			if xy.X > 0 && xy.Y > 0 {
				dots[i] = append(dots[i], XY{at(xy.X), at(xy.Y)})
			}
		}
		if len(dots[i]) > 0 {
			f.Legend = append(f.Legend, Key{s.Name, Style{Colour: series(i).Colour, Dots: true}})
		}
	}
	if len(f.Legend) == 0 {
		return Picture{}, ErrNoData
	}
	f.Charts = []Chart{{X: ratioAxis(xName, maxRatio), Y: ratioAxis(yName, maxRatio), Height: 360, Draw: func(g *Grid) {
		g.Box(XY{-edge, -edge}, XY{at(limit.X), at(limit.Y)}, Style{Colour: "#009e73"}, 0.12)
		for i, points := range dots {
			for _, xy := range points {
				g.Dot(xy, series(i))
			}
		}
	}}}
	return f.Draw()
}
