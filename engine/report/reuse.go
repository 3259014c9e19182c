package report

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

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
			known(FormatNumber(u.LoadCV), u.LoadCV >= 0), FormatTime(l.TTFT.P50), FormatTime(l.TTFT.P95), FormatTime(l.TTFT.P99), FormatTime(l.TPOT.Mean), FormatTime(l.TPOT.P99), FormatTime(l.E2E.P50), FormatTime(l.E2E.P99),
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
	t.Notes = append(t.Notes, "The hit rate is the cached prompt tokens over all prompt tokens, the ideal that of one cache for all requests which loses nothing. "+
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
			t.Notes = append(t.Notes, fmt.Sprintf("The SLO is %s to the first token and %s between tokens, the latency of a request that is alone. A request attains it with both; failed requests do not.", FormatTime(slo.TTFT), FormatTime(slo.TPOT)))
		}
	}
	return t
}

// ReusePicture draws hit rate and load CV, a bar per result.
func ReusePicture(results []replay.Result) (Picture, error) {
	var systems []string
	var hits, spreads []float64
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
	f := Figure{Title: "Prefix caches: hit rates, and what they cost in balance", Width: 560}
	for _, panel := range []struct {
		axis   string
		values []float64
		label  func(float64) string
	}{
		{fmt.Sprintf("prompt tokens found in prefix caches (ideal: %s)", percent(ideal)), hits, shortShare},
		{"load CV between the replicas of a stage", spreads, ShortCount},
	} {
		f.Charts = append(f.Charts, Chart{
			X: LinearAxis(panel.axis, 0, max(1.03*slices.Max(panel.values), 0.01), panel.label), Y: NameAxis("", systems, true),
			Height: 12 + 20*float64(len(systems)), Draw: func(g *Grid) {
				for i, v := range panel.values {
					row := float64(len(systems) - 1 - i) // the first system is at the top
					g.Box(XY{0, row - 0.3}, XY{v, row + 0.3}, SeriesStyle(i), 1)
				}
			},
		})
	}
	return f.Draw()
}
