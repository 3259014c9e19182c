package report

import (
	"fmt"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// XY is a measured point.
type XY struct{ X, Y float64 }

// Fitted draws points and the line base + slope·x that was fitted to them. The names of
// the axes have their units.
func Fitted(title, xName, yName string, points []XY, base, slope float64) (Picture, error) {
	if len(points) == 0 {
		return Picture{}, ErrNoData
	}
	p := newPlot(title, xName, yName)
	p.X.Tick.Marker, p.Y.Tick.Marker = even{short}, even{short}
	var all plotter.XYs
	right := 0.0
	for _, xy := range points {
		all = append(all, plotter.XY(xy))
		right = max(right, xy.X)
	}
	fit, err := line(plotter.XYs{{X: 0, Y: base}, {X: right, Y: base + float64(slope*right)}}, 0)
	if err != nil {
		return Picture{}, fmt.Errorf("draw %s: %w", title, err)
	}
	dots, err := plotter.NewScatter(all)
	if err != nil {
		return Picture{}, fmt.Errorf("draw %s: %w", title, err)
	}
	dots.Color, dots.Radius = colour(1), vg.Points(2.5)
	p.Add(fit, dots)
	p.Y.Min = 0
	return Picture{[]*plot.Plot{p}, vg.Points(520), vg.Points(320)}, nil
}
