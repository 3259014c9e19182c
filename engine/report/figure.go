package report

import (
	"bytes"
	"errors"
	"fmt"
	"html"
	"io"
	"math"
	"strconv"
)

// ErrNoData means that there is nothing to draw.
var ErrNoData = errors.New("there is nothing to draw")

// Picture is an SVG document.
type Picture struct{ svg []byte }

// Write writes the picture to w. It may be called repeatedly.
func (p Picture) Write(w io.Writer) error {
	if _, err := w.Write(p.svg); err != nil {
		return fmt.Errorf("write the picture: %w", err)
	}
	return nil
}

// Figure is a title, a legend below it, and charts below each other. The grids of its charts have the same
// left and right edges. Lengths are in points.
type Figure struct {
	Title  string
	Width  float64
	Legend []Key
	Charts []Chart
}

// Key is an entry of a legend.
type Key struct {
	Name string
	Style
}

// Chart is a grid between two axes. Draw adds what the grid holds.
type Chart struct {
	Title  string // above the grid; may be empty
	X, Y   Axis
	Height float64 // of the grid
	Draw   func(*Grid)
}

// Axis is a range of coordinates. A logarithmic axis holds logarithms: its ticks say what they stand for.
type Axis struct {
	Label     string
	Low, High float64
	Ticks     []Tick
	NoLines   bool // ticks have no lines in the grid
}

// Tick is a line of a grid, and its label beside the axis.
type Tick struct {
	At    float64
	Label string // may have two lines; empty for a line alone
}

// Style is how a line, a dot or a box is drawn.
type Style struct {
	Colour string
	Dashed bool
	Dots   bool // a key shows a dot instead of a line
}

// XY is a point in the coordinates of a chart.
type XY struct{ X, Y float64 }

// palette is Okabe and Ito's, which colour-blind readers can distinguish. The baseline comes first, in grey.
var palette = [...]string{"#777777", "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#000000"}

// SeriesStyle returns the style of the i-th system. The baseline is dashed, so that it stands out in print.
func SeriesStyle(i int) Style { return Style{Colour: palette[i%len(palette)], Dashed: i == 0} }

// The sizes of a figure's parts, in points.
const (
	margin     = 12
	titleSize  = 13
	labelSize  = 11
	tickSize   = 9.5
	legendSize = 10
	keyLength  = 20 // of a key's line
	lineHeight = 1.3
	gridColour = "#e4e4e4"
	inkColour  = "#333333"
)

// Draw returns the figure as SVG. A coordinate that is no finite number is an error.
func (f Figure) Draw() (Picture, error) {
	if len(f.Charts) == 0 {
		return Picture{}, ErrNoData
	}
	g := &Grid{}
	left, right := f.edges()
	y := float64(margin)
	if f.Title != "" {
		y += titleSize
		lines := g.text(margin, y, titleSize, "start", true, wrapWords(f.Title, func(line string) bool { return textWidth(line, titleSize) <= f.Width-2*margin }))
		y += 6 + float64(lines-1)*titleSize*lineHeight
	}
	y = f.drawLegend(g, y)
	for _, c := range f.Charts {
		y = c.draw(g, left, right, y)
	}
	if g.err != nil {
		return Picture{}, fmt.Errorf("draw %q: %w", f.Title, g.err)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%s" height="%s" viewBox="0 0 %s %s" font-family="Liberation Sans, Arial, Helvetica, sans-serif" fill="%s">`+"\n",
		point(f.Width), point(y+margin/2), point(f.Width), point(y+margin/2), inkColour)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="#ffffff"/>`+"\n%s</svg>\n", g.out.String())
	return Picture{b.Bytes()}, nil
}

// edges returns where all grids begin and end, so that the labels of their axes have room.
func (f Figure) edges() (left, right float64) {
	for _, c := range f.Charts {
		names := 0.0
		for _, t := range c.Y.Ticks {
			names = max(names, textWidth(t.Label, tickSize)+8)
		}
		if c.Y.Label != "" {
			names += labelSize + 8
		}
		half := 0.0 // of a label at the end of the axis
		for _, t := range c.X.Ticks {
			half = max(half, textWidth(t.Label, tickSize)/2)
		}
		left, right = max(left, margin+names, half+4), max(right, margin, half+4)
	}
	return left, f.Width - right
}

// drawLegend draws the legend in lines from y on, and returns where it ends.
func (f Figure) drawLegend(g *Grid, y float64) float64 {
	x := float64(margin)
	for i, k := range f.Legend {
		width := keyLength + 5 + textWidth(k.Name, legendSize)
		if x > margin && x+width > f.Width-margin {
			x, y = margin, y+legendSize*1.5
		}
		if i == 0 {
			y += legendSize * 1.2
		}
		if k.Dots {
			g.dot(x+keyLength/2, y-legendSize*0.35, 3, k.Colour)
		} else {
			g.path([][2]float64{{x, y - legendSize*0.35}, {x + keyLength, y - legendSize*0.35}}, k.Style, 2.4)
		}
		g.text(x+keyLength+5, y, legendSize, "start", false, k.Name)
		x += width + 18
	}
	return y + 6
}

// draw draws the chart below y, and returns where it ends.
func (c Chart) draw(g *Grid, left, right, y float64) float64 {
	if c.Title != "" {
		y += labelSize + 6
		g.text(left, y, labelSize, "start", true, c.Title)
	}
	y += 8
	g.Chart, g.left, g.right, g.top, g.bottom = c, left, right, y, y+c.Height
	for _, t := range c.Y.Ticks {
		if at := g.y(t.At); !c.Y.NoLines {
			g.path([][2]float64{{left, at}, {right, at}}, Style{Colour: gridColour}, 0.8)
		}
	}
	for _, t := range c.X.Ticks {
		if at := g.x(t.At); !c.X.NoLines {
			g.path([][2]float64{{at, g.top}, {at, g.bottom}}, Style{Colour: gridColour}, 0.8)
		}
	}
	if c.Draw != nil {
		c.Draw(g)
	}
	for _, axis := range [...][][2]float64{{{left, g.bottom}, {right, g.bottom}}, {{left, g.top}, {left, g.bottom}}} {
		g.path(axis, Style{Colour: inkColour}, 0.8)
	}
	below := 0.0
	end := math.Inf(-1) // of the last label: one that would overlap it is left out
	for _, t := range c.X.Ticks {
		width := textWidth(t.Label, tickSize)
		if at := g.x(t.At); t.Label != "" && at-width/2 > end {
			lines := g.text(at, g.bottom+tickSize+4, tickSize, "middle", false, t.Label)
			below, end = max(below, 4+float64(lines)*tickSize*lineHeight), at+width/2+4
		}
	}
	end = math.Inf(1)
	names := 0.0
	for _, t := range c.Y.Ticks {
		if at := g.y(t.At); t.Label != "" && at < end {
			g.text(left-5, at+tickSize*0.35, tickSize, "end", false, t.Label)
			names, end = max(names, textWidth(t.Label, tickSize)), at-tickSize
		}
	}
	if c.Y.Label != "" {
		x, middle := left-names-12, (g.top+g.bottom)/2
		fmt.Fprintf(&g.out, `<g transform="translate(%s %s) rotate(-90)">`, point(x), point(middle))
		g.text(0, 0, labelSize, "middle", false, c.Y.Label)
		g.out.WriteString("</g>\n")
	}
	if c.X.Label != "" {
		g.text((left+right)/2, g.bottom+below+labelSize+4, labelSize, "middle", false, c.X.Label)
		below += labelSize*lineHeight + 4
	}
	return g.bottom + below + 6
}

// Grid draws into a chart. Its methods take the coordinates of the chart's axes.
type Grid struct {
	Chart
	left, right, top, bottom float64
	out                      bytes.Buffer
	err                      error
}

func (g *Grid) x(v float64) float64 { return g.left + (v-g.X.Low)/(g.X.High-g.X.Low)*(g.right-g.left) }
func (g *Grid) y(v float64) float64 {
	return g.bottom - (v-g.Y.Low)/(g.Y.High-g.Y.Low)*(g.bottom-g.top)
}

// Line draws a curve.
func (g *Grid) Line(points []XY, style Style) {
	at := make([][2]float64, len(points))
	for i, p := range points {
		at[i] = [2]float64{g.x(p.X), g.y(p.Y)}
	}
	g.path(at, style, 1.8)
}

// Dot draws a dot.
func (g *Grid) Dot(at XY, style Style) { g.dot(g.x(at.X), g.y(at.Y), 2.6, style.Colour) }

// Box fills a rectangle. An opacity below 1 lets the content behind it show.
func (g *Grid) Box(from, to XY, style Style, opacity float64) {
	x, y := g.x(from.X), g.y(to.Y)
	g.finite(x, y, g.x(to.X), g.y(from.Y))
	fmt.Fprintf(&g.out, `<rect x="%s" y="%s" width="%s" height="%s" fill="%s" fill-opacity="%s"/>`+"\n",
		point(x), point(y), point(g.x(to.X)-x), point(g.y(from.Y)-y), style.Colour, point(opacity))
}

// Text writes lines around a point, the first one bold. It returns false, and writes nothing, where they are wider than
// the room, a length of the X axis.
func (g *Grid) Text(at XY, room float64, lines ...string) bool {
	for _, line := range lines {
		if textWidth(line, tickSize) > g.x(g.X.Low+room)-g.left {
			return false
		}
	}
	y := g.y(at.Y) - float64(len(lines)-1)*tickSize*lineHeight/2 + tickSize*0.35
	for i, line := range lines {
		g.text(g.x(at.X), y+float64(i)*tickSize*lineHeight, tickSize, "middle", i == 0, line)
	}
	return true
}

func (g *Grid) path(points [][2]float64, style Style, width float64) {
	g.out.WriteString(`<path d="`)
	for i, p := range points {
		g.finite(p[0], p[1])
		command := "L"
		if i == 0 {
			command = "M"
		}
		g.out.WriteString(command + point(p[0]) + " " + point(p[1]))
	}
	dashes := ""
	if style.Dashed {
		dashes = ` stroke-dasharray="5 3"`
	}
	fmt.Fprintf(&g.out, `" fill="none" stroke="%s" stroke-width="%s"%s/>`+"\n", style.Colour, point(width), dashes)
}

func (g *Grid) dot(x, y, radius float64, colour string) {
	g.finite(x, y)
	fmt.Fprintf(&g.out, `<circle cx="%s" cy="%s" r="%s" fill="%s"/>`+"\n", point(x), point(y), point(radius), colour)
}

// text writes the lines of a text, and returns how many there are.
func (g *Grid) text(x, y, size float64, anchor string, bold bool, text string) int {
	g.finite(x, y)
	weight := ""
	if bold {
		weight = ` font-weight="bold"`
	}
	lines := textLines(text)
	for i, line := range lines {
		fmt.Fprintf(&g.out, `<text x="%s" y="%s" font-size="%s" text-anchor="%s"%s>%s</text>`+"\n",
			point(x), point(y+float64(i)*size*lineHeight), point(size), anchor, weight, html.EscapeString(line))
	}
	return len(lines)
}

// finite records the first coordinate that is no number.
func (g *Grid) finite(coordinates ...float64) {
	for _, v := range coordinates {
		if g.err == nil && (math.IsNaN(v) || math.IsInf(v, 0)) {
			g.err = fmt.Errorf("a coordinate is %v", v)
		}
	}
}

// point prints a coordinate to a hundredth of a point.
func point(v float64) string { return strconv.FormatFloat(math.Round(v*100)/100+0, 'f', -1, 64) }
