package trace

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"gonum.org/v1/gonum/stat"
)

// Quality compares a generated trace with the one its generator was fitted to.
type Quality struct {
	Rows []QualityRow
	// InputKS and OutputKS are the largest differences of the distribution
	// functions (Kolmogorov–Smirnov distance), in 0 … 1.
	InputKS, OutputKS float64
}

// QualityRow is one figure of both traces.
type QualityRow struct {
	Name            string
	Real, Generated float64
}

// Compare measures how like two traces are: quantiles of the lengths, the
// median answer by decile of the prompt's length, burstiness of arrivals and
// the share of prompt tokens that repeat an earlier prefix.
func Compare(real, generated []Request) Quality {
	var q Quality
	if len(real) == 0 || len(generated) == 0 {
		return q
	}
	add := func(name string, of func([]Request) float64) {
		q.Rows = append(q.Rows, QualityRow{name, of(real), of(generated)})
	}
	input := func(r Request) float64 { return float64(r.Input) }
	output := func(r Request) float64 { return float64(r.Output) }
	for _, column := range [...]struct {
		name string
		of   func(Request) float64
	}{{"input tokens", input}, {"output tokens", output}} {
		add(column.name+" mean", func(t []Request) float64 { return stat.Mean(sorted(t, column.of), nil) })
		for _, p := range [...]int{10, 25, 50, 75, 90, 95, 99} {
			add(fmt.Sprintf("%s p%d", column.name, p), func(t []Request) float64 {
				return quantile(sorted(t, column.of), float64(p)/100)
			})
		}
	}
	// Deciles are the real trace's in both columns.
	cuts := sorted(real, input)
	for d := range 10 {
		low, high := quantile(cuts, float64(d)/10), quantile(cuts, float64(d+1)/10)
		if d == 9 {
			high = math.Inf(1)
		}
		add(fmt.Sprintf("output p50 of input decile %d", d+1), func(t []Request) float64 {
			within := slices.DeleteFunc(slices.Clone(t), func(r Request) bool { return input(r) < low || input(r) >= high })
			if len(within) == 0 {
				return 0
			}
			return quantile(sorted(within, output), 0.5)
		})
	}
	for _, window := range [...]time.Duration{time.Second, 10 * time.Second, time.Minute} {
		add(fmt.Sprintf("dispersion of arrivals in %v", window), func(t []Request) float64 { return dispersion(t, window) })
	}
	add("repeated prefix %", func(t []Request) float64 { return 100 * repeated(t) })
	q.InputKS = distance(sorted(real, input), sorted(generated, input))
	q.OutputKS = distance(sorted(real, output), sorted(generated, output))
	return q
}

func sorted(t []Request, of func(Request) float64) []float64 {
	values := make([]float64, len(t))
	for i, r := range t {
		values[i] = of(r)
	}
	slices.Sort(values)
	return values
}

// distance is the Kolmogorov–Smirnov distance of two sorted samples.
func distance(a, b []float64) float64 {
	d := 0.0
	for _, v := range slices.Concat(a, b) {
		d = math.Max(d, math.Abs(rank(a, v)-rank(b, v)))
	}
	return d
}

// dispersion is the variance of the arrivals counted in windows, over their
// mean: 1 for a Poisson process. 0 where there are fewer than two windows.
func dispersion(t []Request, window time.Duration) float64 {
	if !timed(t) {
		return 0
	}
	counts := make([]float64, t[len(t)-1].At/window)
	if len(counts) < 2 {
		return 0
	}
	for _, r := range t {
		// The last window is cut short and left out.
		if w := int(r.At / window); w < len(counts) {
			counts[w]++
		}
	}
	mean, sd := stat.PopMeanStdDev(counts, nil)
	return sd * sd / mean
}

// repeated is the share of prompt tokens in blocks that lead an earlier
// prompt: what an unbounded prefix cache would save.
func repeated(t []Request) float64 {
	var cache IdealCache
	for _, r := range t {
		cache.Add(r)
	}
	rate, _ := cache.HitRate()
	return rate
}

// String prints the comparison as an aligned text table.
func (q Quality) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-34s %10s %10s\n", "", "real", "generated")
	for _, r := range q.Rows {
		fmt.Fprintf(&b, "%-34s %10s %10s\n", r.Name, figure(r.Real), figure(r.Generated))
	}
	fmt.Fprintf(&b, "KS distance: input %.3f, output %.3f\n", q.InputKS, q.OutputKS)
	return b.String()
}

func figure(x float64) string {
	if math.Abs(x) < 100 {
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.0f", x)
}
