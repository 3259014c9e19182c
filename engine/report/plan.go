package report

import (
	"fmt"
	"math"
	"strconv"

	"github.com/cascadeinfer/cascade/policies"
)

// Plan draws a plan: which range of lengths each stage serves and with how many replicas, below a histogram of the
// lengths, if there are any, cut at the plan's boundaries. The plan must be valid.
func Plan(title string, plan policies.Plan, requests []policies.Tokens) (Picture, error) {
	if err := plan.Validate(); err != nil {
		return Picture{}, fmt.Errorf("draw the plan: %w", err)
	}
	low, high := planRange(plan, requests)
	x := lengthAxis("", low, high)
	strip := Chart{X: x, Y: Axis{High: 1}, Height: 70, Draw: func(g *Grid) { drawStages(g, plan) }}
	strip.X.Label = "length in tokens"
	f := Figure{Title: title, Width: 640, Charts: []Chart{strip}}
	if len(requests) > 0 {
		bins, most := shares(requests, low, high)
		f.Charts = []Chart{{X: x, Y: LinearAxis("share of requests", 0, most*1.05, shortShare), Height: 160, Draw: func(g *Grid) { drawBins(g, plan, bins) }}, strip}
	}
	return f.Draw()
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

// shares counts lengths in bins of equal width on the logarithmic axis, and returns the greatest share, too.
func shares(requests []policies.Tokens, low, high float64) (all []bin, most float64) {
	n := int(math.Round(math.Log2(high/low) * binsPerOctave))
	all = make([]bin, n)
	for i := range all {
		all[i].low = low * math.Exp2(float64(i)/binsPerOctave)
		all[i].high = low * math.Exp2(float64(i+1)/binsPerOctave)
	}
	for _, t := range requests {
		b := &all[min(max(0, int(math.Log2(math.Max(1, float64(t))/low)*binsPerOctave)), n-1)]
		b.share += 1 / float64(len(requests))
		most = max(most, b.share)
	}
	return all, most
}

// drawBins draws a histogram in the colours of the stages, and a line at each cut.
func drawBins(g *Grid, plan policies.Plan, bins []bin) {
	for _, b := range bins {
		// A bin that a cut divides shows both colours.
		for i, s := range plan.Stages {
			from, to := math.Max(b.low, float64(s.Low)), math.Min(b.high, float64(s.High))
			if from < to && b.share > 0 {
				g.Box(XY{math.Log2(from), 0}, XY{math.Log2(to), b.share}, stageStyle(i), 1)
			}
		}
	}
	for _, s := range plan.Stages[1:] {
		at := math.Log2(float64(s.Low))
		g.Line([]XY{{at, g.Y.Low}, {at, g.Y.High}}, Style{Colour: inkColour, Dashed: true})
	}
}

// stageStyle skips the grey of the baseline.
func stageStyle(i int) Style { return Style{Colour: palette[1+i%(len(palette)-2)]} }

// drawStages draws a plan as a strip of boxes with the name, lengths and replicas of each stage.
func drawStages(g *Grid, plan policies.Plan) {
	for i, s := range plan.Stages {
		from, to := max(math.Log2(max(1, float64(s.Low))), g.X.Low), min(math.Log2(float64(s.High)), g.X.High)
		gap := (g.X.High - g.X.Low) / 400
		g.Box(XY{from + gap, 0.04}, XY{to - gap, 0.96}, stageStyle(i), 0.3)
		middle := XY{(from + to) / 2, 0.5}
		lines := []string{"stage " + strconv.Itoa(i), policies.LengthRange(s.Low, s.High), plural(len(s.Replicas), "replica")}
		if !g.Text(middle, to-from-2*gap, lines...) {
			g.Text(middle, to-from-2*gap, "s"+strconv.Itoa(i), strconv.Itoa(len(s.Replicas))+"×")
		}
	}
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
