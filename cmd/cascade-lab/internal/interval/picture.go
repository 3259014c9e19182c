package interval

import "github.com/cascadeinfer/cascade/engine/report"

// Panel is the intervals of one figure: a row per system, and in each row a point per series.
type Panel struct {
	Figure  string // on the axis
	Systems []string
	Series  []Series
	Plain   bool // the figures are numbers, not seconds
}

// Series is one interval of each system, such as those at one load. A zero Interval
// is left out.
type Series struct {
	Name      string
	Intervals []Interval
}

// Draw draws panels above each other. Times are in seconds unless a panel is Plain, and no bar begins below 0.
func Draw(panels []Panel) (report.Picture, error) {
	f := report.Figure{Width: 640}
	for _, panel := range panels {
		most, drawn := 0.0, 0
		for _, s := range panel.Series {
			for _, v := range s.Intervals {
				if v.Runs > 0 {
					most, drawn = max(most, v.High), drawn+1
				}
			}
		}
		if drawn == 0 {
			continue
		}
		if len(f.Charts) == 0 {
			for i, s := range panel.Series {
				f.Legend = append(f.Legend, report.Key{Name: s.Name, Style: report.Style{Colour: report.SeriesStyle(i + 1).Colour, Dots: true}})
			}
		}
		label := report.ShortTime
		if panel.Plain {
			label = report.ShortCount
		}
		f.Charts = append(f.Charts, report.Chart{
			X: report.LinearAxis(panel.Figure, 0, most*1.03, label), Y: report.NameAxis("", panel.Systems, true),
			Height: 12 + 17*float64(len(panel.Systems)), Draw: func(g *report.Grid) { drawIntervals(g, panel) },
		})
	}
	return f.Draw()
}

// drawIntervals draws the mean of each interval as a dot, and its bounds as a line. The first system is at the top.
func drawIntervals(g *report.Grid, panel Panel) {
	for j, s := range panel.Series {
		shift := 0.16 * (float64(len(panel.Series)-1)/2 - float64(j))
		for row, v := range s.Intervals {
			if v.Runs > 0 {
				y := float64(len(panel.Systems)-1-row) + shift
				g.Line([]report.XY{{X: max(v.Low, 0), Y: y}, {X: v.High, Y: y}}, report.SeriesStyle(j+1))
				g.Dot(report.XY{X: v.Mean, Y: y}, report.SeriesStyle(j+1))
			}
		}
	}
}
