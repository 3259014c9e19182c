// Package interval estimates means from repeated runs, decides whether two systems differ, and draws the estimates.
package interval

import (
	"math"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

const (
	// Level is the probability that an interval contains the mean.
	Level = 0.95
	// MinRuns is how many runs a verdict needs: with fewer, one unusual run decides.
	MinRuns = 5
)

// Interval is an estimate of a mean from repeated runs, of one system (Mean) or of two that served the same
// requests (Ratio), so that the cost of one seed's requests to both is no difference between them. It is the 95 %
// confidence interval by Student's t, which holds for few runs of roughly normal figures. It decides on one figure at
// a time: of 20 figures of two equal systems, one is expected to differ. Of fewer than two runs, Low and High equal Mean.
type Interval struct {
	Mean float64 `json:"mean"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
	Runs int     `json:"runs"`
}

// Mean estimates the mean of the values of independent runs. It returns the zero Interval
// for none.
func Mean(values []float64) Interval {
	n := len(values)
	if n == 0 {
		return Interval{}
	}
	mean, deviation := stat.MeanStdDev(values, nil)
	if n == 1 {
		return Interval{mean, mean, mean, 1}
	}
	t := distuv.StudentsT{Sigma: 1, Nu: float64(n - 1)}.Quantile((1 + Level) / 2)
	half := t * deviation / math.Sqrt(float64(n))
	return Interval{mean, mean - half, mean + half, n}
}

// Ratio estimates the geometric mean of values[i]/base[i], where i is a run of both systems
// with the same requests. It panics if the lengths differ, and returns the zero Interval if
// a value is not positive: such a figure was not measured.
func Ratio(values, base []float64) Interval {
	if len(values) != len(base) {
		panic("internal error: a ratio of unequally many runs")
	}
	logs := make([]float64, len(values))
	for i := range values {
		if !(values[i] > 0) || !(base[i] > 0) {
			return Interval{}
		}
		logs[i] = math.Log(values[i] / base[i])
	}
	l := Mean(logs)
	if l.Runs == 0 {
		return Interval{}
	}
	return Interval{math.Exp(l.Mean), math.Exp(l.Low), math.Exp(l.High), l.Runs}
}

// Verdict is on which side of a value a mean is.
type Verdict int

// The verdicts.
const (
	Undecided Verdict = iota // the interval contains the value, or has too few runs
	Below
	Above
)

// String returns the verdict in lower case.
func (v Verdict) String() string { return [...]string{"undecided", "below", "above"}[v] }

// Against returns on which side of value the whole interval is.
func (i Interval) Against(value float64) Verdict {
	switch {
	case i.Runs < MinRuns:
		return Undecided
	case i.High < value:
		return Below
	case i.Low > value:
		return Above
	}
	return Undecided
}
