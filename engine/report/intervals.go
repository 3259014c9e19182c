package report

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
	Intervals []Interval
}

// Intervals draws panels above each other. Times are in seconds unless a panel is Plain, and no bar begins below 0.
func Intervals(panels []Panel) (Picture, error) {
	f := Figure{Width: 640}
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
				f.Legend = append(f.Legend, Key{s.Name, Style{Colour: series(i + 1).Colour, Dots: true}})
			}
		}
		label := shortTime
		if panel.Plain {
			label = shortCount
		}
		f.Charts = append(f.Charts, Chart{
			X: linearAxis(panel.Figure, 0, most*1.03, label), Y: nameAxis("", panel.Systems, true),
			Height: 12 + 17*float64(len(panel.Systems)), Draw: func(g *Grid) { drawIntervals(g, panel) },
		})
	}
	return f.Draw()
}

// drawIntervals draws the mean of each interval as a dot, and its bounds as a line. The first system is at the top.
func drawIntervals(g *Grid, panel Panel) {
	for j, s := range panel.Series {
		shift := 0.16 * (float64(len(panel.Series)-1)/2 - float64(j))
		for row, v := range s.Intervals {
			if v.Runs > 0 {
				y := float64(len(panel.Systems)-1-row) + shift
				g.Line([]XY{{max(v.Low, 0), y}, {v.High, y}}, series(j+1))
				g.Dot(XY{v.Mean, y}, series(j+1))
			}
		}
	}
}
