package report

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/policies"
)

// Runs lists what each run did: requests, failures, throughput and whether it is a valid measurement.
func Runs(results []replay.Result) Table {
	t := Table{
		Title:  "Runs",
		Header: []string{"system", "requests", "completed", "failed", "truncated", "requests/s", "tokens/s", "CPU idle", "worst second"},
		Left:   1,
	}
	idle := func(share float64) string {
		if share < 0 {
			return "unknown"
		}
		return percent(share)
	}
	for _, r := range results {
		t.Rows = append(t.Rows, []string{
			name(r), strconv.Itoa(r.Requests), strconv.Itoa(r.Completed), strconv.Itoa(r.Failed()), strconv.Itoa(r.Truncated),
			FormatNumber(r.Engine.RequestsPerSecond), FormatNumber(r.Engine.TokensPerSecond), idle(r.IdleCPU), idle(r.IdleCPUWorst),
		})
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
		times = append(times, fmt.Sprintf("%s %s, and the last after %s", r.Name, seconds(r.Engine.MostSeconds), seconds(r.Engine.Seconds)))
	}
	return "Requests and tokens per second are rates of the time in which 99 % of the requests ended: " + strings.Join(times, "; ") + "."
}

// notes returns what a reader of any figure must know.
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

// Latencies compares mean, median and tail of every metric. The last columns
// are ratios to the first result: below 1 is faster.
func Latencies(results []replay.Result) Table {
	t := Table{
		Title:  "Latency",
		Header: []string{"", "system", "mean", "p50", "p95", "p99", "mean ratio", "p99 ratio"},
		Left:   2,
		Group:  len(results),
		Notes:  notes(results),
	}
	for _, m := range metrics {
		for i, r := range results {
			s, base := m.of(r.Engine.Latency), m.of(results[0].Engine.Latency)
			label := m.String()
			if i > 0 {
				label = ""
			}
			t.Rows = append(t.Rows, []string{
				label, name(r), seconds(s.Mean), seconds(s.P50), seconds(s.P95), seconds(s.P99),
				ratio(s.Mean, base.Mean), ratio(s.P99, base.P99),
			})
		}
	}
	return t
}

// ratio prints a/b, or nothing where one is missing.
func ratio(a, b float64) string {
	if a == 0 || b == 0 {
		return "–"
	}
	return "× " + FormatNumber(a/b)
}

// Classes compares the systems within each class of prompt lengths, to show gains of one class at the
// cost of another.
func Classes(results []replay.Result) Table {
	t := Table{
		Title:  "By prompt length",
		Header: []string{"prompt tokens", "requests", "system", "failed", "TTFT mean", "TTFT p99", "TPOT mean", "TPOT p99", "normalised mean", "normalised p99", "normalised ratio"},
		Left:   3,
		Group:  len(results),
		Notes:  notes(results),
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
			row := []string{
				lengths(g), strconv.Itoa(g.Requests), name(r), strconv.Itoa(g.Failed),
				seconds(g.TTFT.Mean), seconds(g.TTFT.P99), seconds(g.TPOT.Mean), seconds(g.TPOT.P99),
				seconds(g.Normalised.Mean), seconds(g.Normalised.P99), ratio(g.Normalised.Mean, base.Normalised.Mean),
			}
			if j > 0 {
				row[0], row[1] = "", ""
			}
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}

// lengths prints a group's range of prompt lengths: classes by their bounds,
// deciles by the shortest and longest prompt that may be in them.
func lengths(g replay.Group) string {
	switch {
	case g.High == policies.Unbounded:
		return "from " + tokens(g.Low)
	case g.High%(1<<10) == 0:
		return tokens(g.Low) + " to " + tokens(g.High)
	}
	return g.Low.String() + " – " + (g.High - 1).String()
}

// Stages lists which stages served a run, from the response headers.
func Stages(r replay.Result) Table {
	t := Table{
		Title:  "Stages of " + name(r),
		Header: []string{"stage", "requests", "share", "shortest prompt", "longest prompt"},
		Left:   1,
	}
	for _, s := range r.Stages {
		t.Rows = append(t.Rows, []string{s.Stage, strconv.Itoa(s.Requests), percent(float64(s.Requests) / float64(max(1, r.Sent))), s.Min.String(), s.Max.String()})
	}
	return t
}
