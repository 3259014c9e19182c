package report

import (
	"fmt"
	"image/color"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Series is a named set of points.
type Series struct {
	Name   string
	Points []XY
}

// maxRatio is where axes of ratios end: points beyond it lie on the edge.
const maxRatio = 3

// Ratios draws pairs of ratios on logarithmic axes, on which twice and half are equally far from 1. Up to the
// limit, in both directions, the ground is pale green. Ratios beyond 3 and below 1/3 lie on the edge.
func Ratios(title, xName, yName string, series []Series, limit XY) (Picture, error) {
	p := newPlot(title, xName, yName)
	p.X.Tick.Marker, p.Y.Tick.Marker = ratioTicks{}, ratioTicks{}
	edge := math.Log2(maxRatio)
	at := func(ratio float64) float64 { return min(max(math.Log2(ratio), -edge), edge) }
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = -edge, edge, -edge, edge
	kept, err := plotter.NewPolygon(plotter.XYs{{X: -edge, Y: -edge}, {X: at(limit.X), Y: -edge}, {X: at(limit.X), Y: at(limit.Y)}, {X: -edge, Y: at(limit.Y)}})
	if err != nil {
		return Picture{}, fmt.Errorf("draw %s: %w", title, err)
	}
	kept.Color, kept.LineStyle.Width = color.NRGBA{0xe3, 0xf4, 0xec, 0xff}, 0
	p.Add(kept)
	drawn := 0
	for i, s := range series {
		var points plotter.XYs
		for _, xy := range s.Points {
			if xy.X > 0 && xy.Y > 0 {
				points = append(points, plotter.XY{X: at(xy.X), Y: at(xy.Y)})
			}
		}
		if len(points) == 0 {
			continue
		}
		drawn += len(points)
		dots, err := plotter.NewScatter(points)
		if err != nil {
			return Picture{}, fmt.Errorf("draw %s: %w", title, err)
		}
		dots.Color, dots.Radius, dots.Shape = colour(i), vg.Points(2.8), draw.CircleGlyph{}
		p.Add(dots)
		p.Legend.Add(s.Name, dots)
	}
	if drawn == 0 {
		return Picture{}, ErrNoData
	}
	p.Legend.Top = true
	return Picture{[]*plot.Plot{p}, vg.Points(560), vg.Points(460)}, nil
}

// ratioTicks labels an axis of log₂ of ratios.
type ratioTicks struct{}

func (ratioTicks) Ticks(low, high float64) (ticks []plot.Tick) {
	for _, ratio := range [...]float64{0.33, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3} {
		if v := math.Log2(ratio); v >= low-0.02 && v <= high+0.02 {
			ticks = append(ticks, plot.Tick{Value: max(low, min(v, high)), Label: strconv.FormatFloat(ratio, 'g', 3, 64)})
		}
	}
	return ticks
}
