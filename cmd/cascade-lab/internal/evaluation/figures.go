package evaluation

import (
	"fmt"
	"math"
	"strings"

	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/interval"
	"github.com/cascadeinfer/cascade/engine/report"
)

// metric is a figure of an outcome that systems are compared by.
type metric struct {
	name   string
	of     func(Outcome) float64
	higher bool // is better
	plain  bool // not a time
}

var (
	ttftMean   = metric{name: "TTFT mean", of: func(o Outcome) float64 { return o.TTFT.Mean }}
	ttftP95    = metric{name: "TTFT p95", of: func(o Outcome) float64 { return o.TTFT.P95 }}
	tpotMean   = metric{name: "TPOT mean", of: func(o Outcome) float64 { return o.TPOT.Mean }}
	tpotP95    = metric{name: "TPOT p95", of: func(o Outcome) float64 { return o.TPOT.P95 }}
	normalMean = metric{name: "normalised mean", of: func(o Outcome) float64 { return o.Normal.Mean }}
	normalP99  = metric{name: "normalised p99", of: func(o Outcome) float64 { return o.Normal.P99 }}
	longestP99 = metric{name: "longest tenth, p99", of: func(o Outcome) float64 { return o.LongestNL.P99 }}
	throughput = metric{name: "tokens/s", of: func(o Outcome) float64 { return o.TokensPerSecond }, higher: true, plain: true}
)

// seconds prints a time.
func seconds(s float64) string {
	switch {
	case s == 0:
		return "–"
	case s < 1:
		return report.FormatNumber(s*1e3) + " ms"
	}
	return report.FormatNumber(s) + " s"
}

// format prints a figure of the metric.
func (m metric) format(v float64) string {
	if m.plain {
		return report.FormatNumber(v)
	}
	return seconds(v)
}

// percent prints a share.
func percent(share float64) string { return report.FormatNumber(100*share) + " %" }

// change prints a ratio as a difference from 1: "−12 %".
func change(ratio float64) string {
	v := math.Round(100 * (ratio - 1))
	switch {
	case v == 0:
		return "±0 %"
	case v < 0:
		return fmt.Sprintf("−%.0f %%", -v)
	}
	return fmt.Sprintf("+%.0f %%", v)
}

// span is the least and the greatest of some figures.
type span struct{ low, high float64 }

// noSpan is the span of no figures.
var noSpan = span{low: 1e300, high: -1e300}

func (s span) with(v float64) span { return span{min(s.low, v), max(s.high, v)} }

// changes prints a span of ratios.
func (s span) changes() string {
	if s.low > s.high {
		return "–"
	}
	if change(s.low) == change(s.high) {
		return change(s.low)
	}
	return change(s.low) + " … " + change(s.high)
}

// factors prints a span of ratios as factors.
func (s span) factors() string {
	if s.low > s.high {
		return "–"
	}
	low, high := report.FormatNumber(s.low), report.FormatNumber(s.high)
	if low == high {
		return "× " + low
	}
	return "× " + low + " … " + high
}

// seeds returns a run once for each of n seeds.
func (e *Evaluation) seeds(r Run, n int) []Run {
	out := make([]Run, n)
	for i := range out {
		out[i] = r
		out[i].Seed = e.in.Seed + uint64(i)
	}
	return out
}

// outcomes returns the outcomes of a run with all seeds.
func (e *Evaluation) outcomes(get lookup, r Run, n int) (out []Outcome) {
	for _, one := range e.seeds(r, n) {
		out = append(out, get(one))
	}
	return out
}

// values returns a metric of outcomes.
func values(outcomes []Outcome, m metric) []float64 {
	out := make([]float64, len(outcomes))
	for i, o := range outcomes {
		out[i] = m.of(o)
	}
	return out
}

// mean returns the mean of a metric.
func mean(outcomes []Outcome, m metric) float64 {
	return interval.Mean(values(outcomes, m)).Mean
}

// ratioOf compares two systems that served the same requests.
func ratioOf(a, b []Outcome, m metric) interval.Interval {
	return interval.Ratio(values(a, m), values(b, m))
}

// joinWords joins words as in a sentence.
func joinWords(words []string) string {
	switch n := len(words); n {
	case 0:
		return "none"
	case 1:
		return words[0]
	default:
		return strings.Join(words[:n-1], ", ") + " and " + words[n-1]
	}
}
