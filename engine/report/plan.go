package report

import (
	"fmt"
	"image/color"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/cascadeinfer/cascade/policies"
)

// Plan draws a plan: which range of lengths each stage serves and with how many replicas, below a
// histogram of the lengths, if there are any, cut at the plan's boundaries. The plan must be valid.
func Plan(plan policies.Plan, requests []policies.Tokens) (Picture, error) {
	if err := plan.Validate(); err != nil {
		return Picture{}, fmt.Errorf("draw the plan: %w", err)
	}
	low, high := planRange(plan, requests)
	strip := newPlot("", "length in tokens", "")
	strip.Add(stages{plan, low, high})
	strip.HideY()
	strip.Y.Min, strip.Y.Max = 0, 1
	title := fmt.Sprintf("Plan of %s, epoch %d", plan.Model, plan.Epoch)
	if len(requests) == 0 {
		tokenAxis(strip, low, high)
		strip.Title.Text = title
		return Picture{[]*plot.Plot{strip}, vg.Points(620), vg.Points(150)}, nil
	}
	histogram := newPlot(title, "", "share of requests")
	histogram.Add(bins{plan, shares(requests, low, high)})
	histogram.Y.Min, histogram.Y.Tick.Marker = 0, even{share}
	tokenAxis(histogram, low, high)
	tokenAxis(strip, low, high)
	return Picture{[]*plot.Plot{histogram, strip}, vg.Points(620), vg.Points(360)}, nil
}

// tokenAxis sets the axis of log₂ that both parts of the picture share.
func tokenAxis(p *plot.Plot, low, high float64) {
	p.X.Tick.Marker = tokenTicks{}
	p.X.Min, p.X.Max = math.Log2(low), math.Log2(high)
}

// planRange is what the axis spans: the lengths and cuts, in whole octaves.
func planRange(plan policies.Plan, requests []policies.Tokens) (low, high float64) {
	low, high = math.Inf(1), 0
	see := func(t float64) {
		low, high = math.Min(low, math.Max(1, t)), math.Max(high, t)
	}
	for _, t := range requests {
		see(float64(t))
	}
	for _, s := range plan.Stages[:len(plan.Stages)-1] {
		// Half an octave on each side of a cut must be visible.
		see(float64(s.High) / math.Sqrt2)
		see(float64(s.High) * math.Sqrt2)
	}
	if high == 0 {
		return 1, 1 << 17 // one stage and no lengths
	}
	low = math.Exp2(math.Floor(math.Log2(low)))
	high = math.Exp2(math.Ceil(math.Log2(high + 1)))
	return low, math.Max(high, low*4)
}

// bin is one bar of a histogram.
type bin struct{ low, high, share float64 }

// binsPerOctave is the resolution of histograms.
const binsPerOctave = 4

// shares counts lengths in bins of equal width on the logarithmic axis.
func shares(requests []policies.Tokens, low, high float64) []bin {
	n := int(math.Round(math.Log2(high/low) * binsPerOctave))
	all := make([]bin, n)
	for i := range all {
		all[i].low = low * math.Exp2(float64(i)/binsPerOctave)
		all[i].high = low * math.Exp2(float64(i+1)/binsPerOctave)
	}
	for _, t := range requests {
		i := int(math.Log2(math.Max(1, float64(t))/low) * binsPerOctave)
		all[min(max(0, i), n-1)].share += 1 / float64(len(requests))
	}
	return all
}

// bins draws a histogram in the colours of the stages.
type bins struct {
	plan policies.Plan
	all  []bin
}

// Plot draws each bin, and a line at each cut.
func (b bins) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	for _, one := range b.all {
		if one.share == 0 {
			continue
		}
		// A bin that a cut divides shows both colours.
		for i, s := range b.plan.Stages {
			from, to := math.Max(one.low, float64(s.Low)), math.Min(one.high, float64(s.High))
			if from < to {
				fill(c, stageColour(i), x(math.Log2(from)), y(0), x(math.Log2(to)), y(one.share))
			}
		}
	}
	for _, s := range b.plan.Stages[1:] {
		at := x(math.Log2(float64(s.Low)))
		c.StrokeLine2(draw.LineStyle{Color: ink, Width: vg.Points(0.8), Dashes: []vg.Length{vg.Points(3), vg.Points(2)}}, at, c.Min.Y, at, c.Max.Y)
	}
}

// DataRange spans the bins.
func (b bins) DataRange() (xmin, xmax, ymin, ymax float64) {
	for _, one := range b.all {
		ymax = math.Max(ymax, one.share)
	}
	return math.Log2(b.all[0].low), math.Log2(b.all[len(b.all)-1].high), 0, ymax * 1.05
}

// stages draws a plan as a strip of boxes.
type stages struct {
	plan      policies.Plan
	low, high float64
}

// stageColour skips the grey of the baseline.
func stageColour(i int) color.NRGBA { return palette[1+i%(len(palette)-2)] }

// Plot draws a box per stage with its name, replicas and range.
func (s stages) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	style := p.X.Tick.Label
	style.XAlign, style.YAlign = text.XCenter, text.YCenter
	heading := style
	heading.Font.Weight = bold
	leading := style.Font.Size * 1.7
	for i, stage := range s.plan.Stages {
		from, to := x(math.Log2(math.Max(float64(stage.Low), s.low))), x(math.Log2(math.Min(float64(stage.High), s.high)))
		gap := vg.Points(1.5)
		fill(c, pale(stageColour(i)), from+gap, y(0.04), to-gap, y(0.96))
		lines := []string{
			"stage " + strconv.Itoa(i),
			plural(len(stage.Replicas), "replica"),
			"[" + stage.Low.String() + ", " + stage.High.String() + ")",
		}
		room := to - from - 2*gap
		if widest(style, lines) > room {
			// A narrow stage has room for its numbers only.
			lines = []string{strconv.Itoa(i), strconv.Itoa(len(stage.Replicas)) + "×", tokens(stage.Low) + "–"}
		}
		for j, line := range lines {
			look := style
			if j == 0 {
				look = heading
			}
			c.FillText(look, vg.Point{X: (from + to) / 2, Y: y(0.5) - leading*vg.Length(j-1)}, line)
		}
	}
}

// DataRange is the strip's own.
func (s stages) DataRange() (xmin, xmax, ymin, ymax float64) {
	return math.Log2(s.low), math.Log2(s.high), 0, 1
}

func widest(style text.Style, lines []string) vg.Length {
	var w vg.Length
	for _, l := range lines {
		w = max(w, style.Width(l))
	}
	return w
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// fill paints a rectangle.
func fill(c draw.Canvas, with color.Color, x0, y0, x1, y1 vg.Length) {
	c.FillPolygon(with, []vg.Point{{X: x0, Y: y0}, {X: x1, Y: y0}, {X: x1, Y: y1}, {X: x0, Y: y1}})
}
