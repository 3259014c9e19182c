package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/cascadeinfer/cascade/engine/profiling"
	"github.com/cascadeinfer/cascade/policies"
)

// prediction is something that a fit predicts.
type prediction struct {
	name string
	profiling.Prediction
}

// predictions lists what a fit predicts, in the order of tables. A record in which all tokens came in bursts, or no
// request was alone, has fewer.
func predictions(f profiling.Fitted) []prediction {
	all := []prediction{{"normalised latency", f.Normalised}, {"time between tokens", f.InterToken}, {"time to first token", f.TTFT}}
	return slices.DeleteFunc(all, func(p prediction) bool { return p.Model.Count == 0 || p.Static.Count == 0 })
}

// Cells is a table of measured cells.
func Cells(logs []profiling.Log) Table {
	t := Table{Header: []string{"prompts", "in flight", "ran at once", "requests", "failed", "time to first token", "time per token"}, Left: 1,
		Notes: []string{"Means of complete requests; time per token is end to end, over the tokens generated. A cell that ran fewer at once than were in flight has queued, and is not fitted."}}
	starved := 0
	for _, l := range logs {
		if l.Starved() {
			starved++
		}
		n, first, normalised := 0.0, 0.0, 0.0
		for _, r := range l.Requests {
			if !r.Cut {
				n++
				first += r.First - r.Start
				normalised += r.Normalised()
			}
		}
		prompts := policies.LengthRange(l.Low, l.High)
		if l.Mixed {
			prompts = fmt.Sprintf("mean %d, spread %.2g", l.Low, l.Spread)
		}
		t.Rows = append(t.Rows, []string{prompts, fmt.Sprint(l.Batch), fmt.Sprint(l.Running), fmt.Sprint(n), fmt.Sprint(l.Failed), FormatTime(first / max(n, 1)), FormatTime(normalised / max(n, 1))})
	}
	if starved > 0 {
		t.Notes = append(t.Notes, fmt.Sprintf("In %d of %d cells this machine was too busy to read tokens when they came: measure them again, to another --record, on one that does little else.", starved, len(logs)))
	}
	return t
}

// meanings of the coefficients of a fit, in their order.
var meanings = [...]string{
	"QoE: per output token",
	"QoE: … and request in the batch",
	"QoE: … and prompt token in the batch",
	"QoE: … and squared prompt token in the batch",
	"QoE: … and token of present length in the batch",
	"iteration",
	"iteration: per decoding sequence",
	"iteration: per prompt token",
	"iteration: per squared prompt token",
	"iteration: per KV token",
	"weight of longest less mean length, a ratio",
}

// Coefficients is a table of what a fit has found.
func Coefficients(f profiling.Fitted) Table {
	t := Table{Title: "Coefficients, in seconds", Header: []string{"", "", "value", "standard error"}, Left: 2}
	for i, c := range f.Coefficients() {
		deviation := "not determined"
		if !math.IsInf(float64(c.Error), 0) {
			deviation = strconv.FormatFloat(float64(c.Error), 'g', 2, 64)
		}
		t.Rows = append(t.Rows, []string{c.Name, meanings[i], strconv.FormatFloat(c.Value, 'g', 5, 64), deviation})
	}
	if !f.Mixed {
		t.Rows = append(t.Rows, []string{"κ", meanings[len(meanings)-1], "not measured: give \"cascade profile measure\" --mixed", ""})
	}
	t.Notes = []string{fmt.Sprintf("Prompts are computed in chunks of %d tokens; a first token takes %s besides its prompt's tokens.", f.Chunk, FormatTime(f.FirstToken))}
	return t
}

// PredictionErrors is a table of the errors of a fit beside those of the static predictor.
func PredictionErrors(f profiling.Fitted) Table {
	t := Table{
		Title:  fmt.Sprintf("Relative errors on %d requests that were not fitted (%d were)", f.HeldOut, f.Requests),
		Header: []string{"predicted", "by", "mean", "p50", "p90", "p99", "requests"}, Left: 2, Group: 2,
		Notes: []string{"time to first token: of requests that are alone in the engine."},
	}
	for _, p := range predictions(f) {
		for i, e := range []profiling.Errors{p.Model, p.Static} {
			t.Rows = append(t.Rows, []string{p.name, [...]string{"the fit", "always the mean"}[i], percent(e.Mean), percent(e.P50), percent(e.P90), percent(e.P99), fmt.Sprint(e.Count)})
		}
	}
	return t
}

// ErrorHistogram is the distribution of a fit's errors as a table. Bins without a prediction are left out.
func ErrorHistogram(f profiling.Fitted) Table {
	t := Table{Title: "Share of predictions by error, (predicted − measured) / measured", Header: []string{"error"}, Left: 1}
	all := predictions(f)
	for _, p := range all {
		t.Header = append(t.Header, p.name, "always the mean")
	}
	for bin := range f.Normalised.Model.Histogram {
		b := f.Normalised.Model.Histogram[bin]
		row, most := []string{fmt.Sprintf("%+.0f … %+.0f %%", 100*b.Low, 100*b.High)}, 0.0
		if bin == len(f.Normalised.Model.Histogram)-1 {
			row[0] = fmt.Sprintf("%+.0f %% and more", 100*b.Low)
		}
		for _, p := range all {
			for _, e := range []profiling.Errors{p.Model, p.Static} {
				most = max(most, e.Histogram[bin].Share)
				row = append(row, percent(e.Histogram[bin].Share))
			}
		}
		if most > 0 {
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}

// PredictionPicture draws the distribution of a fit's errors beside that of the static predictor.
func PredictionPicture(f profiling.Fitted) (Picture, error) {
	names := [...]string{"always the mean", "the fit"}
	fig := Figure{Title: "Errors of predictions for requests that were not fitted", Width: 560, Legend: []Key{{names[0], SeriesStyle(0)}, {names[1], SeriesStyle(1)}}}
	for _, one := range predictions(f) {
		curves := make([][]XY, 2)
		low, high, most := 0.0, 0.0, 0.0
		title := capital(one.name) + ", mean error: "
		for i, e := range []profiling.Errors{one.Static, one.Model} {
			for _, b := range e.Histogram {
				curves[i] = append(curves[i], XY{b.Low, b.Share}, XY{b.High, b.Share})
				low, high, most = min(low, b.Low), max(high, b.High), max(most, b.Share)
			}
			title += [...]string{"", "; "}[i] + names[i] + " " + percent(e.Mean)
		}
		fig.Charts = append(fig.Charts, Chart{
			Title: title, X: LinearAxis("", low, high, shortShare), Y: LinearAxis("share of requests", 0, most*1.05, shortShare), Height: 120,
			Draw: func(g *Grid) {
				for i, curve := range curves {
					g.Line(curve, SeriesStyle(i))
				}
			},
		})
	}
	if len(fig.Charts) > 0 {
		fig.Charts[len(fig.Charts)-1].X.Label = "relative error, (predicted − measured) / measured"
	}
	return fig.Draw()
}
