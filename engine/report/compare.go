package report

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/policies"
)

// Runs lists what each run did: requests, failures, throughput and whether it is a valid measurement.
func Runs(results []replay.Result) Table {
	t := Table{
		Title:  "Runs",
		Header: []string{"system", "requests", "completed", "failed", "truncated", "requests/s", "tokens/s"},
		Left:   1,
	}
	// Simulations need no CPU in time, and some systems do not report theirs.
	measured := slices.ContainsFunc(results, func(r replay.Result) bool { return r.IdleCPU >= 0 })
	if measured {
		t.Header = append(t.Header, "CPU idle", "worst second")
	}
	for _, r := range results {
		row := []string{
			name(r), strconv.Itoa(r.Requests), strconv.Itoa(r.Completed), strconv.Itoa(r.Failed()), strconv.Itoa(r.Truncated),
			FormatNumber(r.Engine.RequestsPerSecond), FormatNumber(r.Engine.TokensPerSecond),
		}
		if measured {
			row = append(row, known(percent(r.IdleCPU), r.IdleCPU >= 0), known(percent(r.IdleCPUWorst), r.IdleCPUWorst >= 0))
		}
		t.Rows = append(t.Rows, row)
	}
	t.Notes = append(notes(results), rates(results))
	for _, r := range results {
		for _, f := range r.Failures {
			t.Notes = append(t.Notes, fmt.Sprintf("%s: %d × %s, first: %s", r.Name, f.Count, f.Kind, f.First))
		}
	}
	return t
}

// rates says of which time the rates are.
func rates(results []replay.Result) string {
	var times []string
	for _, r := range results {
		times = append(times, fmt.Sprintf("%s %s, and the last after %s", r.Name, FormatTime(r.Engine.MostSeconds), FormatTime(r.Engine.Seconds)))
	}
	return "Requests and tokens per second are rates of the time in which 99 % of the requests ended: " + strings.Join(times, "; ") + "."
}

// notes returns what a reader of any figure must know: it stands once, below the first table.
func notes(results []replay.Result) []string {
	var notes []string
	for _, r := range results {
		if r.Void != "" {
			notes = append(notes, fmt.Sprintf("%s is void: %s.", r.Name, r.Void))
		}
		if r.Interrupted {
			notes = append(notes, fmt.Sprintf("%s was interrupted: %d of %d requests were sent.", r.Name, r.Sent, r.Requests))
		}
	}
	if clock := clock(results); clock != "" {
		notes = append(notes, clock)
	}
	return notes
}

// clock returns the time base of the figures; empty for plain wall time.
func clock(results []replay.Result) string {
	for _, r := range results {
		switch {
		case r.Speed != results[0].Speed:
			return fmt.Sprintf("Times are engine time: wall time × the run's speed. The speeds differ (%s: %v, %s: %v), so compare with care.", results[0].Name, results[0].Speed, r.Name, r.Speed)
		case r.Speed != 1:
			return fmt.Sprintf("Times are engine time: wall time × %v, the speed of the engines.", r.Speed)
		}
	}
	return ""
}

// Latencies compares mean, median and tail of every metric. The last columns are ratios to the best of the other
// results: below 1 is faster than all of them.
func Latencies(results []replay.Result) Table {
	t := Table{
		Title:  "Latency",
		Header: []string{"", "system", "mean", "p50", "p95", "p99", "mean / best other", "p99 / best other"},
		Left:   2,
		Group:  len(results),
	}
	for _, m := range metrics {
		mean := func(r replay.Result) float64 { return m.of(r.Engine.Latency).Mean }
		p99 := func(r replay.Result) float64 { return m.of(r.Engine.Latency).P99 }
		for i, r := range results {
			s := m.of(r.Engine.Latency)
			time := func(t float64) string { return known(FormatTime(t), s.Count > 0) }
			label := m.String()
			if i > 0 {
				label = ""
			}
			t.Rows = append(t.Rows, []string{
				label, name(r), time(s.Mean), time(s.P50), time(s.P95), time(s.P99), ratio(results, i, mean), ratio(results, i, p99),
			})
		}
	}
	return t
}

// BestOther returns the best of the results beside the i-th one: that with the least figure. It returns −1 if there is
// none. Void results and those without the figure are no rivals.
func BestOther(results []replay.Result, i int, figure func(replay.Result) float64) int {
	best := -1
	for j, r := range results {
		if j != i && r.Void == "" && figure(r) > 0 && (best < 0 || figure(r) < figure(results[best])) {
			best = j
		}
	}
	return best
}

// ratio prints the figure of the i-th result over that of the best other one, or nothing where one is missing.
func ratio(results []replay.Result, i int, figure func(replay.Result) float64) string {
	best := BestOther(results, i, figure)
	if best < 0 || figure(results[i]) == 0 {
		return "–"
	}
	return "× " + FormatNumber(figure(results[i])/figure(results[best]))
}

// Classes compares the systems within each class of prompt lengths, to show gains of one class at the
// cost of another.
func Classes(results []replay.Result) Table {
	t := Table{
		Title:  "By prompt length",
		Header: []string{"prompt tokens (requests)", "system", "failed", "TTFT mean", "TTFT p99", "TPOT mean", "TPOT p99", "normalised mean", "normalised p99", "mean / best other"},
		Left:   2,
		Group:  len(results),
	}
	if len(results) == 0 {
		return t
	}
	for i, base := range results[0].Engine.Classes {
		if base.Requests == 0 {
			continue
		}
		for j, r := range results {
			g := r.Engine.Classes[i]
			time := func(s replay.Summary, t float64) string { return known(FormatTime(t), s.Count > 0) }
			row := []string{
				fmt.Sprintf("%s (%d)", policies.LengthRange(g.Low, g.High), g.Requests), name(r), strconv.Itoa(g.Failed),
				time(g.TTFT, g.TTFT.Mean), time(g.TTFT, g.TTFT.P99), time(g.TPOT, g.TPOT.Mean), time(g.TPOT, g.TPOT.P99),
				time(g.Normalised, g.Normalised.Mean), time(g.Normalised, g.Normalised.P99),
				ratio(results, j, func(r replay.Result) float64 { return r.Engine.Classes[i].Normalised.Mean }),
			}
			if j > 0 {
				row[0] = ""
			}
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}

// Stages lists which stages served a run, from the response headers.
func Stages(r replay.Result) Table {
	t := Table{
		Title:  "Stages of " + name(r),
		Header: []string{"stage", "requests", "share", "shortest prompt", "longest prompt"},
		Left:   1,
	}
	for _, s := range r.Stages {
		t.Rows = append(t.Rows, []string{s.Stage, strconv.Itoa(s.Requests), percent(float64(s.Requests) / float64(max(1, r.Sent))), s.Min.Grouped(), s.Max.Grouped()})
	}
	return t
}
