package report

import (
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/cascadeinfer/cascade/policies"
)

// Format is a picture's file format.
type Format string

// The formats.
const (
	SVG Format = "svg"
	PNG Format = "png"
)

// dotsPerInch makes PNGs sharp on high-resolution screens.
const dotsPerInch = 160

// ErrNoData means that there is nothing to draw.
var ErrNoData = errors.New("there is nothing to draw")

// Picture is one or several plots above each other.
type Picture struct {
	plots         []*plot.Plot
	width, height vg.Length
}

// Write draws the picture. It may be called again, also with another format.
func (p Picture) Write(w io.Writer, format Format) error {
	switch format {
	case SVG:
		canvas := vgsvg.New(p.width, p.height)
		p.draw(draw.New(canvas))
		_, err := canvas.WriteTo(w)
		return wrap(err)
	case PNG:
		canvas := vgimg.NewWith(vgimg.UseWH(p.width, p.height), vgimg.UseDPI(dotsPerInch))
		p.draw(draw.New(canvas))
		_, err := vgimg.PngCanvas{Canvas: canvas}.WriteTo(w)
		return wrap(err)
	}
	return fmt.Errorf("a picture cannot be written as %q; use %q or %q", format, SVG, PNG)
}

func wrap(err error) error {
	if err != nil {
		return fmt.Errorf("write the picture: %w", err)
	}
	return nil
}

func (p Picture) draw(canvas draw.Canvas) {
	canvas.SetColor(color.White)
	canvas.Fill(canvas.Rectangle.Path())
	rows := make([][]*plot.Plot, len(p.plots))
	for i, one := range p.plots {
		rows[i] = []*plot.Plot{one}
	}
	tiles := draw.Tiles{
		Rows: len(rows), Cols: 1, PadY: vg.Points(14),
		PadTop: vg.Points(10), PadBottom: vg.Points(8), PadLeft: vg.Points(10), PadRight: vg.Points(16),
	}
	for i, row := range plot.Align(rows, tiles, canvas) {
		p.plots[i].Draw(row[0])
	}
}

// palette is Okabe and Ito's, which colour-blind readers can distinguish; the baseline comes first, in
// grey.
var palette = [...]color.NRGBA{
	{0x77, 0x77, 0x77, 0xff}, {0x00, 0x72, 0xb2, 0xff}, {0xe6, 0x9f, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff},
	{0xd5, 0x5e, 0x00, 0xff}, {0xcc, 0x79, 0xa7, 0xff}, {0x56, 0xb4, 0xe9, 0xff}, {0x00, 0x00, 0x00, 0xff},
}

func colour(i int) color.NRGBA { return palette[i%len(palette)] }

// pale is a background colour for text.
func pale(c color.NRGBA) color.NRGBA {
	mix := func(x uint8) uint8 { return uint8(255 - (255-int(x))*3/10) }
	return color.NRGBA{mix(c.R), mix(c.G), mix(c.B), 0xff}
}

// ink is the colour of text and axes.
var ink = color.NRGBA{0x33, 0x33, 0x33, 0xff}

// bold is the weight of titles (x/image/font.WeightBold).
const bold = 3

// newPlot returns an empty plot in the common style: one sans-serif face, thin axes, a pale grid.
func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	face := func(size float64) font.Font {
		return font.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Points(size)}
	}
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.TextStyle.Font = face(13)
	p.Title.TextStyle.Font.Weight = bold
	p.Title.TextStyle.Color = ink
	p.Title.Padding = vg.Points(8)
	p.Legend.TextStyle.Font = face(10)
	p.Legend.TextStyle.Color = ink
	p.Legend.ThumbnailWidth = vg.Points(22)
	p.Legend.Padding = vg.Points(3)
	p.Legend.YPosition = 0
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Label.TextStyle.Font = face(11)
		axis.Label.TextStyle.Color = ink
		axis.Label.Padding = vg.Points(5)
		axis.Tick.Label.Font = face(9.5)
		axis.Tick.Label.Color = ink
		axis.Color, axis.Tick.Color = ink, ink
		axis.LineStyle.Width = vg.Points(0.6)
		axis.Tick.LineStyle.Width = vg.Points(0.6)
	}
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.NRGBA{0xe4, 0xe4, 0xe4, 0xff}, color.NRGBA{0xe4, 0xe4, 0xe4, 0xff}
	p.Add(grid)
	return p
}

// line returns a curve in the i-th colour; the baseline is dashed, so that it stands out in print without
// colour.
func line(points plotter.XYs, i int) (*plotter.Line, error) {
	l, err := plotter.NewLine(points)
	if err != nil {
		return nil, err
	}
	l.Color = colour(i)
	l.Width = vg.Points(1.8)
	if i == 0 {
		l.Dashes = []vg.Length{vg.Points(5), vg.Points(3)}
	}
	return l, nil
}

// Logarithmic axes hold the logarithms themselves: plot.LogScale leaves room
// for the axis label where a linear axis has its middle, and so cuts the plot
// short.

// timeTicks labels an axis of log₁₀ of seconds: 1, 2 and 5 of each decade.
type timeTicks struct{}

func (timeTicks) Ticks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	wide := high-low > 3.5
	for decade := math.Floor(low); decade <= math.Ceil(high); decade++ {
		for d := 1.0; d < 10; d++ {
			at := decade + math.Log10(d)
			if at < low-1e-3 || at > high+1e-3 {
				continue
			}
			label := ""
			if d == 1 || !wide && (d == 2 || d == 5) {
				label = short(d * math.Pow(10, decade))
			}
			ticks = append(ticks, plot.Tick{Value: at, Label: label})
		}
	}
	return ticks
}

// short prints a round time without needless zeros.
func short(s float64) string {
	f := func(x float64) string { return strconv.FormatFloat(x, 'g', 4, 64) }
	switch {
	case s == 0:
		return "0"
	case s < 0.9999e-3:
		return f(s*1e6) + " µs"
	case s < 0.9999:
		return f(s*1e3) + " ms"
	}
	return f(s) + " s"
}

// even labels a linear axis at about five round values, printed by label.
type even struct{ label func(float64) string }

func (e even) Ticks(low, high float64) []plot.Tick {
	if !(high > low) {
		return nil
	}
	// The step is 1, 2 or 5 times a power of ten.
	step := math.Pow(10, math.Floor(math.Log10((high-low)/5)))
	for _, times := range [...]float64{2, 2.5, 2} {
		if (high-low)/step <= 7 {
			break
		}
		step *= times
	}
	var ticks []plot.Tick
	for i := math.Ceil(low/step - 1e-9); i*step <= high+step*1e-9; i++ {
		v := i*step + 0 // not a negative zero
		ticks = append(ticks, plot.Tick{Value: v, Label: e.label(v)})
	}
	return ticks
}

// count prints a number, thousands as k.
func count(v float64) string {
	if math.Abs(v) >= 10000 {
		return strconv.FormatFloat(v/1000, 'g', 4, 64) + "k"
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

// share prints a share in percent.
func share(v float64) string { return strconv.FormatFloat(100*v, 'g', 3, 64) + " %" }

// tokenTicks labels an axis of log₂ of tokens at powers of two, every second
// one where there are many.
type tokenTicks struct{}

func (tokenTicks) Ticks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	step := 1
	if high-low > 11 {
		step = 2
	}
	for i := int(math.Ceil(low - 1e-3)); float64(i) <= high+1e-3; i++ {
		label := ""
		if i%step == 0 {
			label = tokens(policies.Tokens(1) << i)
		}
		ticks = append(ticks, plot.Tick{Value: float64(i), Label: label})
	}
	return ticks
}
