package profiling

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
)

// Errors is the distribution of relative errors, (predicted − measured) / measured.
type Errors struct {
	Count int     `json:"count"`
	Mean  float64 `json:"mean"` // of the absolute values, as all but Histogram; 0.089 is 8.9 %
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	// Histogram is the share of predictions by signed error.
	Histogram []Bin `json:"histogram"`
}

// Bin is one bar of a histogram: errors of [Low, High).
type Bin struct {
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
	Share float64 `json:"share"`
}

// The histogram has bins of 10 percentage points from −100 % to +200 %; larger errors count in the last.
const (
	binWidth = 0.1
	lowBin   = -10
	highBin  = 20
)

// summarise describes signed relative errors.
func summarise(signed []float64) Errors {
	e := Errors{Count: len(signed)}
	for i := lowBin; i < highBin; i++ {
		e.Histogram = append(e.Histogram, Bin{Low: float64(i) / 10, High: float64(i+1) / 10})
	}
	if len(signed) == 0 {
		return e
	}
	absolute := make([]float64, len(signed))
	for i, v := range signed {
		absolute[i] = math.Abs(v)
		// Floor keeps errors just below and just above 0 in different bins.
		bin := min(max(int(math.Floor(v/binWidth)), lowBin), highBin-1) - lowBin
		e.Histogram[bin].Share += 1 / float64(len(signed))
	}
	slices.Sort(absolute)
	at := func(p float64) float64 { return stat.Quantile(p, stat.Empirical, absolute, nil) }
	e.Mean, e.P50, e.P90, e.P99 = stat.Mean(absolute, nil), at(0.5), at(0.9), at(0.99)
	return e
}
