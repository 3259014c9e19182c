package report

import (
	"math"
	"strings"

	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/policies"
)

// unit is the note on an axis about the clock.
func unit(results []replay.Result) string {
	if results[0].Speed != 1 {
		return " (engine time)"
	}
	return ""
}

// capital begins a title.
func capital(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// Distribution draws the share of requests that were served within a time, a curve per result. The axis of shares is
// logarithmic towards 100 %, and dots mark p50, p95 and p99.
func Distribution(results []replay.Result, m Metric) (Picture, error) {
	low, high := math.Inf(1), 0.0
	f := Figure{Title: capital(m.axis()) + ": the share of requests within a time", Width: 560}
	for i, r := range results {
		s := m.of(r.Engine.Latency)
		if len(s.Percentiles) < 100 || s.P99 <= 0 {
			continue
		}
		low, high = min(low, firstPositive(s.Percentiles)), max(high, s.P99)
		f.Legend = append(f.Legend, Key{name(r) + ": p50 " + FormatTime(s.P50) + ", p95 " + FormatTime(s.P95) + ", p99 " + FormatTime(s.P99), SeriesStyle(i)})
	}
	if len(f.Legend) == 0 {
		return Picture{}, ErrNoData
	}
	f.Charts = []Chart{{X: timeAxis(m.axis()+unit(results), low, high), Y: tailAxis("share of requests"), Height: 250, Draw: func(g *Grid) {
		for i, r := range results {
			var points []XY
			for percentile, v := range m.of(r.Engine.Latency).Percentiles {
				if v > 0 && percentile < 100 { // the slowest request has no place on the axis of shares
					points = append(points, XY{math.Log10(v), tail(float64(percentile) / 100)})
				}
			}
			if len(points) == 0 {
				continue
			}
			g.Line(points, SeriesStyle(i))
			s := m.of(r.Engine.Latency)
			for _, at := range [...]XY{{s.P50, 0.5}, {s.P95, 0.95}, {s.P99, 0.99}} {
				g.Dot(XY{math.Log10(at.X), tail(at.Y)}, SeriesStyle(i))
			}
		}
	}}}
	return f.Draw()
}

// firstPositive returns the first of the rising values that is above 0.
func firstPositive(values []float64) float64 {
	for _, v := range values {
		if v > 0 {
			return v
		}
	}
	return 1
}

// ByLength draws the mean of a metric by decile of prompt length, a bar per result. The deciles are those of the first
// result; results of other traces have none of them and are left out.
func ByLength(results []replay.Result, m Metric) (Picture, error) {
	if len(results) == 0 || len(results[0].Engine.Deciles) == 0 {
		return Picture{}, ErrNoData
	}
	base := results[0].Engine.Deciles
	labels, most := make([]string, len(base)), 0.0
	for i, g := range base {
		labels[i] = strings.Replace(policies.LengthRange(g.Low, g.High), "–", "–\n", 1)
	}
	f := Figure{Title: capital(m.axis()) + ": means by prompt length", Width: 640}
	var shown []int
	for i, r := range results {
		if len(r.Engine.Deciles) != len(base) {
			continue
		}
		for _, g := range r.Engine.Deciles {
			most = max(most, m.of(g.Latency).Mean)
		}
		shown = append(shown, i)
		f.Legend = append(f.Legend, Key{name(r), Style{Colour: SeriesStyle(i).Colour, Dots: true}})
	}
	const span = 0.8 // of a group of bars
	width := span / float64(len(shown))
	f.Charts = []Chart{{
		X:      NameAxis("prompt tokens, a tenth of the requests in each group", labels, false),
		Y:      LinearAxis("mean"+unit(results), 0, most*1.05, ShortTime),
		Height: 230, Draw: func(g *Grid) {
			for place, i := range shown {
				for d, group := range results[i].Engine.Deciles {
					from := float64(d) - span/2 + float64(place)*width
					g.Box(XY{from, 0}, XY{from + width, m.of(group.Latency).Mean}, SeriesStyle(i), 1)
				}
			}
		},
	}}
	return f.Draw()
}

// Timeline draws throughput and outstanding requests over the run.
func Timeline(results []replay.Result) (Picture, error) {
	f := Figure{Title: "Throughput and requests in flight over the run", Width: 640}
	end, tokens, open := 0.0, 1.0, 1.0
	for i, r := range results {
		if len(r.Engine.Timeline) == 0 {
			continue
		}
		f.Legend = append(f.Legend, Key{name(r), SeriesStyle(i)})
		for _, m := range r.Engine.Timeline {
			end, tokens, open = max(end, m.At), max(tokens, m.Tokens), max(open, m.Outstanding)
		}
	}
	if len(f.Legend) == 0 {
		return Picture{}, ErrNoData
	}
	curves := func(of func(replay.Moment) float64) func(*Grid) {
		return func(g *Grid) {
			for i, r := range results {
				var points []XY
				for _, m := range r.Engine.Timeline {
					points = append(points, XY{m.At, of(m)})
				}
				if len(points) > 0 {
					g.Line(points, SeriesStyle(i))
				}
			}
		}
	}
	x := LinearAxis("", 0, end, ShortTime)
	f.Charts = []Chart{
		{X: x, Y: LinearAxis("tokens/s generated", 0, tokens*1.05, ShortCount), Height: 150, Draw: curves(func(m replay.Moment) float64 { return m.Tokens })},
		{X: x, Y: LinearAxis("requests in flight", 0, open*1.05, ShortCount), Height: 150, Draw: curves(func(m replay.Moment) float64 { return m.Outstanding })},
	}
	f.Charts[1].X.Label = "time since the start" + unit(results)
	return f.Draw()
}
