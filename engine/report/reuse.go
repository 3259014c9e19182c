package report

import (
	"fmt"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/cascadeinfer/cascade/engine/replay"
)

// Reuse lists how much of the prompts came from prefix caches, and what that gave: results of traces whose
// prompts share no prefix are left out.
func Reuse(results []replay.Result) Table {
	t := Table{
		Title:  "Prefix caches",
		Header: []string{"system", "hit rate", "ideal", "of the ideal", "load CV", "TTFT p50", "TTFT p95", "TTFT p99", "TPOT mean", "TPOT p99", "end to end p50", "end to end p99"},
		Left:   1,
	}
	var counted, unknown []string
	for _, r := range results {
		u := r.Reuse
		if u == nil {
			continue
		}
		l := r.Engine.Latency
		t.Rows = append(t.Rows, []string{
			name(r), known(percent(u.HitRate), u.Source != ""), known(percent(u.Ideal), u.Ideal > 0), known(percent(u.OfIdeal), u.Source != "" && u.Ideal > 0),
			known(FormatNumber(u.LoadCV), u.LoadCV >= 0), seconds(l.TTFT.P50), seconds(l.TTFT.P95), seconds(l.TTFT.P99), seconds(l.TPOT.Mean), seconds(l.TPOT.P99), seconds(l.E2E.P50), seconds(l.E2E.P99),
		})
		switch u.Source {
		case replay.FromEngines:
			counted = append(counted, r.Name)
		case "":
			unknown = append(unknown, r.Name)
		}
	}
	if len(t.Rows) == 0 {
		return t
	}
	t.Notes = append(notes(results), "The hit rate is the cached prompt tokens over all prompt tokens, the ideal that of one cache for all requests which loses nothing. "+
		"Load CV is the coefficient of variation of the work of the last 30 s between the replicas of a stage: computed prompt tokens and four times the generated ones.")
	if len(counted) > 0 {
		t.Notes = append(t.Notes, fmt.Sprintf("The answers of %s named no cached tokens: the hit rate is that of the engines' counters.", strings.Join(counted, ", ")))
	}
	if len(unknown) > 0 {
		t.Notes = append(t.Notes, fmt.Sprintf("Neither answers nor engines of %s named cached tokens: nothing was cached, or nothing says so.", strings.Join(unknown, ", ")))
	}
	return t
}

// known prints a figure if there is one.
func known(figure string, ok bool) string {
	if !ok {
		return "–"
	}
	return figure
}

// Attainment lists the share of the requests that were within multiples of the SLO; results without one
// are left out.
func Attainment(results []replay.Result) Table {
	t := Table{Title: "SLO attainment", Header: []string{"system"}, Left: 1}
	for _, times := range replay.Multiples {
		t.Header = append(t.Header, strconv.FormatFloat(times, 'f', -1, 64)+" × SLO")
	}
	for _, r := range results {
		if r.Attainment == nil {
			continue
		}
		row := []string{name(r)}
		for _, share := range r.Attainment.Shares {
			row = append(row, percent(share))
		}
		t.Rows = append(t.Rows, row)
		slo := r.Attainment.SLO
		if len(t.Rows) == 1 {
			t.Notes = append(notes(results), fmt.Sprintf("The SLO is %s to the first token and %s between tokens, the latency of a request that is alone. A request attains it with both; failed requests do not.", seconds(slo.TTFT), seconds(slo.TPOT)))
		}
	}
	return t
}

// ReusePicture draws hit rate and load CV, a bar per result.
func ReusePicture(results []replay.Result) (Picture, error) {
	var systems []string
	var hits, spreads plotter.Values
	ideal := 0.0
	for _, r := range results {
		if r.Reuse == nil {
			continue
		}
		systems, ideal = append(systems, name(r)), max(ideal, r.Reuse.Ideal)
		hits, spreads = append(hits, r.Reuse.HitRate), append(spreads, max(0, r.Reuse.LoadCV))
	}
	if len(systems) == 0 {
		return Picture{}, ErrNoData
	}
	picture := Picture{width: vg.Points(520), height: vg.Points(90 + 44*float64(len(systems)))}
	for _, panel := range []struct {
		axis   string
		values plotter.Values
		ticks  plot.Ticker
	}{
		{fmt.Sprintf("prompt tokens found in prefix caches (ideal: %s)", percent(ideal)), hits, even{share}},
		{"load CV between the replicas of a stage", spreads, even{count}},
	} {
		p := newPlot("", panel.axis, "")
		p.X.Tick.Marker = panel.ticks
		for i, v := range panel.values {
			row := len(systems) - 1 - i // the first system is at the top
			bar, err := plotter.NewBarChart(plotter.Values{v}, vg.Points(11))
			if err != nil {
				return Picture{}, fmt.Errorf("draw %s: %w", panel.axis, err)
			}
			bar.Horizontal, bar.XMin, bar.Color, bar.LineStyle.Width = true, float64(row), colour(i), 0
			p.Add(bar)
		}
		names := make([]string, len(systems))
		for i, s := range systems {
			names[len(names)-1-i] = s
		}
		p.NominalY(names...)
		p.X.Min = 0
		p.X.Max = max(1.03*p.X.Max, 0.01)
		p.Y.Min, p.Y.Max = -0.6, float64(len(names))-0.4
		picture.plots = append(picture.plots, p)
	}
	return picture, nil
}
