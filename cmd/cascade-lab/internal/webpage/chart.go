package webpage

import (
	"math"
	"strconv"
	"strings"

	"github.com/cascadeinfer/cascade/engine/report"
)

// Chart is curves over one axis. Its figures are drawn as they are given; not finite ones are left out.
type Chart struct {
	Title, X, Y string // the names of the axes have their units
	Curves      []Curve
	// LogY draws the vertical axis logarithmically; figures that are not positive are left out.
	LogY bool
	// Steps draws curves as stairs, for histograms.
	Steps bool
}

// Curve is one curve of a chart, by rising X.
type Curve struct {
	Name   string
	Points []report.XY
}

// The measures of a chart, in units of its view box, which is as wide as a phone.
const (
	width, height = 400, 270
	left, right   = 52, 392
	top, bottom   = 12, 222
	colours       = 8 // of the page's style sheet
)

// drawing is a chart in the coordinates of its view box.
type drawing struct {
	Chart
	Width, Height, Left, Right, Top, Bottom, Middle, Foot, TickX, TickY int
	XTicks, YTicks                                                      []tick
	Shapes                                                              []shape
}

type tick struct{ At, TextAt, Label string }

// shape is a curve as a path, and its points unless they are stairs.
type shape struct {
	Name   string
	Style  int
	Path   string
	Points [][2]string
}

// Drawing returns what the page's template draws.
func (c Chart) Drawing() drawing {
	d := drawing{
		Chart: c, Width: width, Height: height, Left: left, Right: right, Top: top, Bottom: bottom,
		Middle: (left + right) / 2, Foot: height - 8, TickX: left - 5, TickY: bottom + 16,
	}
	value := func(y float64) float64 {
		if c.LogY {
			return math.Log10(y)
		}
		return y
	}
	lowX, highX, lowY, highY := math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)
	for _, curve := range c.Curves {
		for _, p := range curve.Points {
			if y := value(p.Y); finite(p.X) && finite(y) {
				lowX, highX, lowY, highY = min(lowX, p.X), max(highX, p.X), min(lowY, y), max(highY, y)
			}
		}
	}
	if lowX > highX {
		return d // nothing to draw
	}
	if !c.LogY {
		lowY = min(lowY, 0)
	}
	if highX == lowX {
		lowX, highX = lowX-0.5, highX+0.5
	}
	if highY == lowY {
		highY = lowY + 1
	}
	highY += 0.05 * (highY - lowY)
	x := func(v float64) float64 { return left + (v-lowX)/(highX-lowX)*(right-left) }
	y := func(v float64) float64 { return bottom - (v-lowY)/(highY-lowY)*(bottom-top) }
	for _, v := range ticks(lowX, highX, 6) {
		d.XTicks = append(d.XTicks, tick{At: coordinate(x(v)), Label: label(v)})
	}
	marks := ticks(lowY, highY, 6)
	if c.LogY {
		marks = decades(lowY, highY)
	}
	for _, v := range marks {
		shown := v
		if c.LogY {
			shown = math.Pow(10, v)
		}
		d.YTicks = append(d.YTicks, tick{At: coordinate(y(v)), TextAt: coordinate(y(v) + 4), Label: label(shown)})
	}
	for i, curve := range c.Curves {
		s := shape{Name: curve.Name, Style: i % colours}
		var path strings.Builder
		lastY := ""
		for _, p := range curve.Points {
			v := value(p.Y)
			if !finite(p.X) || !finite(v) {
				continue
			}
			px, py := coordinate(x(p.X)), coordinate(y(v))
			switch {
			case path.Len() == 0:
				path.WriteString("M" + px + " " + py)
			case c.Steps:
				path.WriteString("L" + px + " " + lastY + "L" + px + " " + py)
			default:
				path.WriteString("L" + px + " " + py)
			}
			lastY = py
			if !c.Steps {
				s.Points = append(s.Points, [2]string{px, py})
			}
		}
		s.Path = path.String()
		d.Shapes = append(d.Shapes, s)
	}
	return d
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// coordinate prints a length with one decimal, the same on every machine.
func coordinate(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }

// ticks returns round values, at most about as many as asked for.
func ticks(low, high float64, most int) (out []float64) {
	step := math.Pow(10, math.Floor(math.Log10((high-low)/float64(most))))
	for _, times := range [...]float64{2, 2.5, 2} {
		if (high-low)/step <= float64(most) {
			break
		}
		step *= times
	}
	for i := math.Ceil(low/step - 1e-9); i*step <= high+step*1e-9; i++ {
		out = append(out, i*step+0) // not a negative zero
	}
	return out
}

// decades returns the logarithms of 1, 2 and 5 of each decade, of the decades alone where there are many, and of
// evenly spaced values where the axis is short.
func decades(low, high float64) (out []float64) {
	digits := []float64{1, 2, 5}
	if high-low > 2.5 {
		digits = digits[:1]
	}
	for decade := math.Floor(low); decade <= high; decade++ {
		for _, digit := range digits {
			if v := decade + math.Log10(digit); v >= low && v <= high {
				out = append(out, v)
			}
		}
	}
	if len(out) >= 3 {
		return out
	}
	out = nil
	for _, v := range ticks(math.Pow(10, low), math.Pow(10, high), 6) {
		if v > 0 {
			out = append(out, math.Log10(v))
		}
	}
	return out
}

// label prints a round value, thousands as k.
func label(v float64) string {
	if math.Abs(v) >= 10_000 {
		return strconv.FormatFloat(v/1000, 'g', 4, 64) + "k"
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}
