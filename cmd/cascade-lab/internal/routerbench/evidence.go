package routerbench

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/interval"
	"github.com/cascadeinfer/cascade/engine/replay"
)

// figure is a number that tables compare between runs.
type figure struct {
	Name string
	of   func(replay.Metrics) float64 // seconds of engine time; 0: not measured
}

// reuseFigure is a share that tables show where prompts share prefixes.
type reuseFigure struct {
	Name string
	of   func(*replay.Reuse) (value float64, known bool)
}

// loadCV is the name of the only figure that is no percentage.
const loadCV = "load CV"

var reuseFigures = []reuseFigure{
	{"prefix hit rate", func(u *replay.Reuse) (float64, bool) { return u.HitRate, u.Source != "" }},
	{"of the ideal", func(u *replay.Reuse) (float64, bool) { return u.OfIdeal, u.Source != "" && u.Ideal > 0 }},
	{loadCV, func(u *replay.Reuse) (float64, bool) { return u.LoadCV, u.LoadCV >= 0 }},
}

// attainmentName is the name of the share of requests within a multiple of the SLO.
func attainmentName(times float64) string { return fmt.Sprintf("within %g × SLO", times) }

var figures = []figure{
	{"TTFT mean", func(m replay.Metrics) float64 { return m.TTFT.Mean }},
	{"TTFT p50", func(m replay.Metrics) float64 { return m.TTFT.P50 }},
	{"TTFT p95", func(m replay.Metrics) float64 { return m.TTFT.P95 }},
	{"TTFT p99", func(m replay.Metrics) float64 { return m.TTFT.P99 }},
	{"TPOT mean", func(m replay.Metrics) float64 { return m.TPOT.Mean }},
	{"normalised mean", func(m replay.Metrics) float64 { return m.Normalised.Mean }},
	{"normalised p99", func(m replay.Metrics) float64 { return m.Normalised.P99 }},
	{"end to end p50", func(m replay.Metrics) float64 { return m.E2E.P50 }},
	{"end to end p99", func(m replay.Metrics) float64 { return m.E2E.P99 }},
	{"longest decile p99", longestDecile},
}

// longestDecile is the 99th percentile of the normalised latency of the tenth of the requests
// with the longest prompts.
func longestDecile(m replay.Metrics) float64 {
	if len(m.Deciles) == 0 {
		return 0
	}
	return m.Deciles[len(m.Deciles)-1].Normalised.P99
}

// summary sums up the runs of one contestant at one rate.
type summary struct {
	Contestant string  `json:"contestant"`
	Rate       float64 `json:"rate"`
	Runs       int     `json:"runs"` // that are not void
	Void       int     `json:"void"`
	// Requests, Failed and Truncated are sums over the runs that are not void.
	Requests  int `json:"requests"`
	Failed    int `json:"failed"`
	Truncated int `json:"truncated"` // answered with fewer tokens than asked for
	// Idle is the least idle share of the machine of any run, void ones included; −1 if unknown.
	Idle    float64                      `json:"idle_cpu"`
	Figures map[string]interval.Interval `json:"figures"`
	// Shares are the figures of the prefix caches, where prompts share prefixes, and the attainment of the
	// SLO.
	Shares map[string]interval.Interval `json:"shares"`
}

// summarise returns a summary per rate and contestant, in that order. Void runs count in no figure.
func summarise(contestants []string, rates []float64, runs map[cell]run) []summary {
	var out []summary
	for _, rate := range rates {
		for _, name := range contestants {
			s := summary{Contestant: name, Rate: rate, Idle: -1, Figures: map[string]interval.Interval{}, Shares: map[string]interval.Interval{}}
			values, shares := map[string][]float64{}, map[string][]float64{}
			for _, r := range sortBySeed(runs) {
				if r.Contestant != name || r.Rate != rate {
					continue
				}
				if idle := r.Result.IdleCPU; s.Idle < 0 || idle >= 0 && idle < s.Idle {
					s.Idle = idle
				}
				if r.Result.Void != "" {
					s.Void++
					continue
				}
				s.Runs++
				s.Requests += r.Result.Sent
				s.Failed += r.Result.Failed()
				s.Truncated += r.Result.Truncated
				for _, f := range figures {
					values[f.Name] = append(values[f.Name], f.of(r.Result.Engine))
				}
				addShares(shares, r.Result)
			}
			for name, v := range shares {
				s.Shares[name] = interval.Mean(v)
			}
			for name, v := range values {
				s.Figures[name] = interval.Mean(v)
			}
			out = append(out, s)
		}
	}
	return out
}

// addShares adds the shares of one run.
func addShares(to map[string][]float64, r replay.Result) {
	if r.Reuse != nil {
		for _, f := range reuseFigures {
			if v, ok := f.of(r.Reuse); ok {
				to[f.Name] = append(to[f.Name], v)
			}
		}
	}
	if r.Attainment != nil {
		for i, times := range replay.Multiples {
			to[attainmentName(times)] = append(to[attainmentName(times)], r.Attainment.Shares[i])
		}
	}
}

// sortBySeed returns the runs by increasing seed; runs of equal seeds are in no order.
func sortBySeed(runs map[cell]run) []run {
	out := make([]run, 0, len(runs))
	for _, r := range runs {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b run) int { return cmp.Compare(a.Seed, b.Seed) })
	return out
}

// comparison compares the subject, which is the first contestant, with a rival in one figure at one rate.
type comparison struct {
	Rate   float64 `json:"rate"`
	Rival  string  `json:"rival"`
	Figure string  `json:"figure"`
	// Ratio is the subject's figure over the rival's, seed by seed.
	Ratio interval.Interval `json:"ratio"`
	Seeds int               `json:"seeds"` // with valid runs of both
	// Verdict is better or worse; absent if the interval contains 1, if the figure was not
	// measured, or if Withheld gives a reason.
	Verdict  string `json:"verdict,omitempty"`
	Withheld string `json:"withheld,omitempty"`
}

// The verdicts.
const (
	better = "better"
	worse  = "worse"
)

// maxFailed is the share of failed requests beyond which latencies are not compared: failed
// requests have none, so that a system that fails many would look fast.
const maxFailed = 0.01

// compare compares the subject with every rival.
func compare(subject string, rivals []string, rates []float64, runs map[cell]run) []comparison {
	var out []comparison
	for _, rate := range rates {
		for _, rival := range rivals {
			a, b := pairResults(runs, rate, subject, rival)
			reason := withholdReason(subject, rival, a, b)
			for _, f := range figures {
				var x, y []float64
				for i := range a {
					x, y = append(x, f.of(a[i].Engine)), append(y, f.of(b[i].Engine))
				}
				c := comparison{Rate: rate, Rival: rival, Figure: f.Name, Ratio: interval.Ratio(x, y), Seeds: len(a), Withheld: reason}
				if reason == "" {
					c.Verdict = judge(c.Ratio)
				}
				out = append(out, c)
			}
		}
	}
	return out
}

// pairResults returns the results of two contestants at one rate, seed by seed. A seed of which
// either has no run, or a void one, is left out.
func pairResults(runs map[cell]run, rate float64, subject, rival string) (a, b []replay.Result) {
	for _, r := range sortBySeed(runs) {
		other, ok := runs[cell{rival, rate, r.Seed}]
		if r.Contestant == subject && r.Rate == rate && ok && r.Result.Void == "" && other.Result.Void == "" {
			a, b = append(a, r.Result), append(b, other.Result)
		}
	}
	return a, b
}

// withholdReason returns why two systems get no verdict; "" if they do.
func withholdReason(x, y string, a, b []replay.Result) string {
	if n := len(a); n < interval.MinRuns {
		return fmt.Sprintf("%d seeds, %d are needed", n, interval.MinRuns)
	}
	for _, side := range []struct {
		name    string
		results []replay.Result
	}{{x, a}, {y, b}} {
		sent, failed := 0, 0
		for _, r := range side.results {
			sent, failed = sent+r.Sent, failed+r.Failed()
		}
		if float64(failed) > maxFailed*float64(sent) {
			return fmt.Sprintf("%s failed %d of %d requests", side.name, failed, sent)
		}
	}
	return ""
}

// judge returns the verdict of a ratio of latencies; "" for none.
func judge(ratio interval.Interval) string {
	switch ratio.Against(1) {
	case interval.Below:
		return better
	case interval.Above:
		return worse
	}
	return ""
}
