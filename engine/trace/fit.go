package trace

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"

	"gonum.org/v1/gonum/stat"

	"github.com/cascadeinfer/cascade/policies"
)

// FitConfig configures Fit.
type FitConfig struct {
	Name   string // of the class and of the generator
	Source string // of the trace, for the reader of the figures
	// Components is the number of lognormals in the mixture; 0 means 12. More
	// follow the spikes of templated prompts closer.
	Components int
	// Seed starts the fit; equal seeds give equal fits.
	Seed uint64
}

const (
	defaultComponents = 12
	maxComponents     = 64
	// minFit is the fewest requests to fit: fewer say nothing about a p99.
	minFit = 100
)

// Fit fits a Generator of one class to a trace. Spread the arrivals first
// (Shape.Spread) when the trace's clock ticks coarsely. A trace without
// arrival times gives Rate 1, Poisson; one without prefixes shares none.
func Fit(requests []Request, cfg FitConfig) (Generator, error) {
	if cfg.Components == 0 {
		cfg.Components = defaultComponents
	}
	if cfg.Components < 1 || cfg.Components > maxComponents {
		return Generator{}, fmt.Errorf("fit %s: %d components; give 1 … %d, or 0 for %d", cfg.Name, cfg.Components, maxComponents, defaultComponents)
	}
	if len(requests) < minFit {
		return Generator{}, fmt.Errorf("fit %s: %d requests are too few; give at least %d", cfg.Name, len(requests), minFit)
	}
	rng := rand.New(rand.NewPCG(cfg.Seed, 0xf17))
	span := func(of func(Request) policies.Tokens) Range {
		r := Range{of(requests[0]), of(requests[0])}
		for _, q := range requests {
			r.Min, r.Max = min(r.Min, of(q)), max(r.Max, of(q))
		}
		return r
	}
	class := Class{
		Name:    cfg.Name,
		Source:  cfg.Source,
		Share:   1,
		Input:   span(func(r Request) policies.Tokens { return r.Input }),
		Output:  span(func(r Request) policies.Tokens { return r.Output }),
		Lengths: fitMixture(requests, cfg.Components, rng),
		Prefix:  fitPrefix(requests),
	}
	if len(class.Lengths) == 0 {
		return Generator{}, errors.New("fit " + cfg.Name + ": the lengths fit no mixture")
	}
	g := Generator{Name: cfg.Name, Source: cfg.Source, Rate: 1, GapCV: 1, Classes: []Class{class}}
	if rate := Rate(requests); rate > 0 {
		g.Rate = rate
		g.GapCV, g.Swing = fitArrivals(requests)
	}
	return g, nil
}

// fitArrivals estimates the coefficient of variation of the gaps, each
// measured against the mean gap of its minute, and that of the minutes' rates
// beyond what the gaps alone cause.
func fitArrivals(requests []Request) (gapCV, swing float64) {
	last := requests[len(requests)-1].At
	counts := make([]float64, last/minute+1)
	sums := make([]float64, len(counts))
	for i, r := range requests[1:] {
		m := r.At / minute
		counts[m]++
		sums[m] += (r.At - requests[i].At).Seconds()
	}
	var normal []float64
	for i, r := range requests[1:] {
		// A minute with few gaps has no mean to speak of.
		if m := r.At / minute; counts[m] >= 8 && sums[m] > 0 {
			normal = append(normal, (r.At-requests[i].At).Seconds()*counts[m]/sums[m])
		}
	}
	gapCV = 1
	if len(normal) > 1 {
		mean, sd := stat.PopMeanStdDev(normal, nil)
		gapCV = sd / mean
	}
	// The last minute is cut short.
	whole := counts[:len(counts)-1]
	if len(whole) < 2 {
		return gapCV, 0
	}
	mean, sd := stat.PopMeanStdDev(whole, nil)
	// A renewal process of these gaps has counts of variance CV²·mean; what is
	// above it is drift.
	if extra := sd*sd - gapCV*gapCV*mean; extra > 0 && mean > 0 {
		swing = math.Sqrt(extra) / mean
	}
	return gapCV, swing
}

// fitPrefix measures the common beginning of all prompts, the share of next
// turns, how much prompts grow between turns and how far back turns reach.
func fitPrefix(requests []Request) Prefix {
	head := commonHead(requests)
	seen := make(map[uint64]int) // block → the latest request that has it
	var growth, back []float64
	named := 0
	for i, r := range requests {
		if len(r.Prefix) == 0 {
			continue
		}
		named++
		if shared := sharedBlocks(seen, r.Prefix); shared > head {
			before := seen[r.Prefix[shared-1]]
			back = append(back, float64(i-before))
			growth = append(growth, math.Log(float64(max(1, r.Input-requests[before].Input))))
		}
		for _, id := range r.Prefix {
			seen[id] = i
		}
	}
	if named == 0 {
		return Prefix{}
	}
	p := Prefix{System: policies.Tokens(head) * BlockTokens, Continue: float64(len(growth)) / float64(named)}
	if len(growth) > 0 {
		slices.Sort(growth)
		slices.Sort(back)
		// Quantiles, because some prompts shrink between turns and stand at 0.
		p.Growth = quantile(growth, 0.5)
		p.GrowthSD = (quantile(growth, 0.84) - quantile(growth, 0.16)) / 2
		p.Recent = min(max(1, int(quantile(back, 0.9))), maxRecent)
	}
	return p
}

// sharedBlocks counts the leading blocks that an earlier prompt had.
func sharedBlocks(seen map[uint64]int, prefix []uint64) int {
	for i, id := range prefix {
		if _, ok := seen[id]; !ok {
			return i
		}
	}
	return len(prefix)
}

// commonHead counts the leading blocks that at least nine of ten prompts with
// named blocks share.
func commonHead(requests []Request) int {
	for depth := 0; ; depth++ {
		counts := make(map[uint64]int)
		named, most := 0, 0
		for _, r := range requests {
			if len(r.Prefix) > 0 {
				named++
			}
			if len(r.Prefix) > depth {
				counts[r.Prefix[depth]]++
				most = max(most, counts[r.Prefix[depth]])
			}
		}
		if most == 0 || most*10 < named*9 {
			return depth
		}
	}
}

// quantile returns the interpolated q-quantile of sorted values.
func quantile(sorted []float64, q float64) float64 {
	x := q * float64(len(sorted)-1)
	i := min(int(x), len(sorted)-1)
	if i+1 == len(sorted) {
		return sorted[i]
	}
	return sorted[i] + (x-float64(i))*(sorted[i+1]-sorted[i])
}

// rank is the share of sorted values at or below v.
func rank(sorted []float64, v float64) float64 {
	return float64(sort.Search(len(sorted), func(i int) bool { return sorted[i] > v })) / float64(len(sorted))
}
