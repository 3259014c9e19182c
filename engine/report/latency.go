package report

import (
	"fmt"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/cascadeinfer/cascade/engine/replay"
)

// unit is the note on an axis about the clock.
func unit(results []replay.Result) string {
	if results[0].Speed != 1 {
		return " (engine time)"
	}
	return ""
}

// Distribution draws the share of requests that were served within a time,
// one curve per result.
func Distribution(results []replay.Result, m Metric) (Picture, error) {
	if len(results) == 0 {
		return Picture{}, ErrNoData
	}
	p := newPlot("", m.axis()+unit(results), "share of requests served within")
	p.X.Tick.Marker = timeTicks{}
	p.Y.Min, p.Y.Max, p.Y.Tick.Marker = 0, 1, even{share}
	p.Legend.Top, p.Legend.Left = true, true
	drawn := false
	for i, r := range results {
		var points plotter.XYs
		for percentile, v := range m.of(r.Engine.Latency).Percentiles {
			if v > 0 {
				points = append(points, plotter.XY{X: math.Log10(v), Y: float64(percentile) / 100})
			}
		}
		if len(points) == 0 {
			continue
		}
		curve, err := line(points, i)
		if err != nil {
			return Picture{}, fmt.Errorf("draw %s of %s: %w", m, r.Name, err)
		}
		drawn = true
		p.Add(curve)
		p.Legend.Add(name(r), curve)
	}
	if !drawn {
		return Picture{}, fmt.Errorf("draw %s: %w", m, ErrNoData)
	}
	// Equal times need some width around them.
	p.X.Min, p.X.Max = p.X.Min-0.02, p.X.Max+0.02
	return Picture{[]*plot.Plot{p}, vg.Points(520), vg.Points(320)}, nil
}

// ByLength draws the mean of a metric by decile of prompt length, a bar per
// result. The deciles are those of the first result; results of other traces
// have none of them and are left out.
func ByLength(results []replay.Result, m Metric) (Picture, error) {
	if len(results) == 0 || len(results[0].Engine.Deciles) == 0 {
		return Picture{}, ErrNoData
	}
	p := newPlot("", "prompt tokens, a tenth of the requests in each group", "mean "+m.axis()+unit(results))
	p.Y.Tick.Marker = even{short}
	p.Y.Min = 0
	p.Legend.Top, p.Legend.Left = true, true
	base := results[0].Engine.Deciles
	labels := make([]string, len(base))
	for i, g := range base {
		labels[i] = lengths(g)
	}
	const span = 34 // points of a group of bars
	width := vg.Points(span / float64(len(results)))
	for i, r := range results {
		if len(r.Engine.Deciles) != len(base) {
			continue
		}
		values := make(plotter.Values, len(base))
		for d, g := range r.Engine.Deciles {
			values[d] = m.of(g.Latency).Mean
		}
		bars, err := plotter.NewBarChart(values, width)
		if err != nil {
			return Picture{}, fmt.Errorf("draw %s of %s: %w", m, r.Name, err)
		}
		bars.Color = colour(i)
		bars.LineStyle.Width = 0
		bars.Offset = width * vg.Length(float64(i)-float64(len(results)-1)/2)
		p.Add(bars)
		p.Legend.Add(name(r), bars)
	}
	p.NominalX(labels...)
	p.X.Min, p.X.Max = -0.6, float64(len(base))-0.4
	p.X.Tick.Label.Rotation = math.Pi / 7
	p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = -1, -0.6
	// Head room for the legend.
	p.Y.Max *= 1.12
	return Picture{[]*plot.Plot{p}, vg.Points(620), vg.Points(340)}, nil
}

// Timeline draws throughput and outstanding requests over the run.
func Timeline(results []replay.Result) (Picture, error) {
	if len(results) == 0 || len(results[0].Engine.Timeline) == 0 {
		return Picture{}, ErrNoData
	}
	at := "time since the start" + unit(results)
	rate := newPlot("", "", "tokens/s generated")
	open := newPlot("", at, "requests outstanding")
	for _, p := range []*plot.Plot{rate, open} {
		p.X.Tick.Marker = even{short}
		p.Y.Tick.Marker = even{count}
		p.Y.Min = 0
	}
	rate.Legend.Top, rate.Legend.Left = true, true
	for i, r := range results {
		var tokens, outstanding plotter.XYs
		for _, m := range r.Engine.Timeline {
			tokens = append(tokens, plotter.XY{X: m.At, Y: m.Tokens})
			outstanding = append(outstanding, plotter.XY{X: m.At, Y: m.Outstanding})
		}
		if len(tokens) == 0 {
			continue
		}
		a, err := line(tokens, i)
		if err != nil {
			return Picture{}, fmt.Errorf("draw the timeline of %s: %w", r.Name, err)
		}
		b, err := line(outstanding, i)
		if err != nil {
			return Picture{}, fmt.Errorf("draw the timeline of %s: %w", r.Name, err)
		}
		rate.Add(a)
		rate.Legend.Add(name(r), a)
		open.Add(b)
	}
	for _, p := range []*plot.Plot{rate, open} {
		p.X.Min = 0
		p.Y.Max = math.Max(p.Y.Max*1.2, 1)
	}
	return Picture{[]*plot.Plot{rate, open}, vg.Points(620), vg.Points(420)}, nil
}
