package report

import (
	"fmt"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/cascadeinfer/cascade/engine/interval"
)

// Panel is the intervals of one figure: a row per system, and in each row a point per series.
type Panel struct {
	Figure  string // on the axis
	Systems []string
	Series  []IntervalSeries
	Plain   bool // the figures are numbers, not seconds
}

// IntervalSeries is one interval of each system, such as those at one load. A zero Interval
// is left out.
type IntervalSeries struct {
	Name      string
	Intervals []interval.Interval
}

// Intervals draws panels above each other. Times are in seconds unless a panel is Plain, and no bar begins below 0; the
// first panel has the legend.
func Intervals(panels []Panel) (Picture, error) {
	picture := Picture{width: vg.Points(620)}
	for _, panel := range panels {
		p := newPlot("", panel.Figure, "")
		p.X.Tick.Marker = even{short}
		if panel.Plain {
			p.X.Tick.Marker = even{count}
		}
		p.X.Min = 0
		drawn := false
		for j, series := range panel.Series {
			points := intervalPoints{}
			shift := 0.16 * (float64(len(panel.Series)-1)/2 - float64(j))
			for row, v := range series.Intervals {
				if v.Runs > 0 {
					// The first system is at the top.
					points.XYs = append(points.XYs, plotter.XY{X: v.Mean, Y: float64(len(panel.Systems)-1-row) + shift})
					points.XErrors = append(points.XErrors, struct{ Low, High float64 }{max(v.Low, 0) - v.Mean, v.High - v.Mean})
				}
			}
			if len(points.XYs) == 0 {
				continue
			}
			drawn = true
			bars, err := plotter.NewXErrorBars(points)
			if err != nil {
				return Picture{}, fmt.Errorf("draw %s: %w", panel.Figure, err)
			}
			dots, err := plotter.NewScatter(points.XYs)
			if err != nil {
				return Picture{}, fmt.Errorf("draw %s: %w", panel.Figure, err)
			}
			bars.Color, dots.Color = colour(j+1), colour(j+1)
			bars.Width, dots.Radius, dots.Shape = vg.Points(1.2), vg.Points(2.6), draw.CircleGlyph{}
			p.Add(bars, dots)
			if len(picture.plots) == 0 {
				p.Legend.Add(series.Name, dots)
			}
		}
		if !drawn {
			continue
		}
		p.Legend.Top = true
		names := make([]string, len(panel.Systems))
		for row, name := range panel.Systems {
			names[len(names)-1-row] = name
		}
		p.NominalY(names...)
		p.Y.Min, p.Y.Max = -0.6, float64(len(names))-0.4
		if len(picture.plots) == 0 {
			p.Y.Max += 0.5 * float64(len(panel.Series)) // head room for the legend
		}
		p.X.Max *= 1.03
		picture.plots = append(picture.plots, p)
		picture.height += vg.Points(56 + 17*float64(len(names)))
	}
	if len(picture.plots) == 0 {
		return Picture{}, ErrNoData
	}
	return picture, nil
}

type intervalPoints struct {
	plotter.XYs
	plotter.XErrors
}
