package report

// Fitted draws points and the line base + slope·x that was fitted to them. The names of the axes have their units.
func Fitted(title, xName, yName string, points []XY, base, slope float64) (Picture, error) {
	if len(points) == 0 {
		return Picture{}, ErrNoData
	}
	right, top := 0.0, base
	for _, xy := range points {
		right, top = max(right, xy.X), max(top, xy.Y)
	}
	fit := []XY{{0, base}, {right, base + float64(slope*right)}}
	return Figure{Title: title, Width: 560, Legend: []Key{{"measured", Style{Colour: series(1).Colour, Dots: true}}, {"fitted", series(0)}}, Charts: []Chart{{
		X: linearAxis(xName, 0, right*1.02, shortCount), Y: linearAxis(yName, 0, max(top, fit[1].Y)*1.05, shortCount), Height: 240,
		Draw: func(g *Grid) {
			g.Line(fit, series(0))
			for _, xy := range points {
				g.Dot(xy, series(1))
			}
		},
	}}}.Draw()
}
