package frontier

import (
	"math"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// The rule, fixed before any default was tuned by it.
const (
	longestBound = 1.10 // p99 of the longest decile, over least load's
	equalBound   = 1.02 // median and p95 of the others, over the best rival's
)

// sample is one completed request; times are in seconds.
type sample struct {
	prompt           policies.Tokens
	ttft, normalised float64
}

// figures are those of one system in one cell, in seconds.
type figures struct {
	Name    string
	Stages  int // of the last plan, the most of any seed; 0 for rivals
	Mean    float64
	Longest float64 // p99 of the longest decile, normalised
	// Median and P95 of the other nine deciles, normalised, and their first tokens.
	Median, P95         float64
	MedianTTFT, P95TTFT float64
}

// summarise computes figures of requests, at least one; it sorts them.
func summarise(all []sample) figures {
	if len(all) == 0 {
		return figures{}
	}
	slices.SortStableFunc(all, func(a, b sample) int { return int(a.prompt - b.prompt) })
	cut := len(all) * 9 / 10
	normalised := func(s sample) float64 { return s.normalised }
	ttft := func(s sample) float64 { return s.ttft }
	f := figures{
		Longest: quantile(all[cut:], 0.99, normalised),
		Median:  quantile(all[:cut], 0.5, normalised), P95: quantile(all[:cut], 0.95, normalised),
		MedianTTFT: quantile(all[:cut], 0.5, ttft), P95TTFT: quantile(all[:cut], 0.95, ttft),
	}
	for _, s := range all {
		f.Mean += s.normalised / float64(len(all))
	}
	return f
}

// quantile returns the value that a share q of the samples does not exceed; 0 of none.
func quantile(of []sample, q float64, value func(sample) float64) float64 {
	if len(of) == 0 {
		return 0
	}
	values := make([]float64, len(of))
	for i, s := range of {
		values[i] = value(s)
	}
	slices.Sort(values)
	return values[max(0, int(math.Ceil(q*float64(len(values))))-1)]
}

// verdict is a system's part of a cell: what it has over the rule's reference, 1 being equal.
type verdict struct {
	Longest     float64 // over least load
	Median, P95 float64 // over the best rival
	Mean        float64 // over the best rival
}

// kept reports whether the rule holds.
func (v verdict) kept() bool {
	return v.Longest <= longestBound && v.Median <= equalBound && v.P95 <= equalBound
}

// judge compares a system with the rivals of its cell, of which the first is least load.
func judge(f figures, rivals []figures) verdict {
	best := func(value func(figures) float64) float64 {
		lowest := math.Inf(1)
		for _, r := range rivals {
			lowest = min(lowest, value(r))
		}
		return lowest
	}
	return verdict{
		Longest: f.Longest / rivals[0].Longest,
		Median:  f.Median / best(func(r figures) float64 { return r.Median }),
		P95:     f.P95 / best(func(r figures) float64 { return r.P95 }),
		Mean:    f.Mean / best(func(r figures) float64 { return r.Mean }),
	}
}
