package replay

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
)

// exactly is the summary of all values, sorted.
func exactly(values []float64) Summary {
	slices.Sort(values)
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	at := func(p float64) float64 { return values[max(1, int(math.Ceil(p*float64(len(values)))))-1] }
	return Summary{Count: len(values), Mean: sum / float64(len(values)), P50: at(0.5), P95: at(0.95), P99: at(0.99), Max: values[len(values)-1]}
}

func nearBy(a, b, by float64) bool { return math.Abs(a-b) <= by*math.Abs(b) }

func checkSummary(t *testing.T, name string, got, want Summary) {
	t.Helper()
	const by = Error * 1.01
	if got.Count != want.Count || !nearBy(got.Mean, want.Mean, 1e-9) || got.Max != want.Max || !nearBy(got.P50, want.P50, by) || !nearBy(got.P95, want.P95, by) || !nearBy(got.P99, want.P99, by) {
		t.Errorf("%s: %+v, want %+v", name, got, want)
	}
}

// TestMetrics compares with the sorted values of 20,000 records.
func TestMetrics(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var c Collector
	var ttft, tpot, normalised, e2e, ends []float64
	classes := make([][]float64, 5)
	failed := 0
	for i := range 20000 {
		due := float64(i) * 0.01
		r := Record{Due: due, Input: policies.Tokens(math.Exp(rng.Float64() * 11.6)), Tokens: 1 + rng.Int64N(300), TTFT: math.Exp(rng.NormFloat64() - 2)}
		r.Last = r.TTFT + float64(r.Tokens-1)*0.02*math.Exp(rng.NormFloat64()/9)
		r.E2E = r.Last
		c.AddArrival(durationOf(due))
		c.AddTokens(durationOf(due), 30)
		ends = append(ends, r.Due+r.E2E)
		if i%50 == 0 {
			r.Error = Cut
			failed++
		} else {
			ttft, e2e, normalised = append(ttft, r.TTFT), append(e2e, r.E2E), append(normalised, r.E2E/float64(r.Tokens))
			if v, ok := r.TPOT(); ok {
				tpot = append(tpot, v)
			}
			class := 0
			for ClassBounds()[class+1] <= r.Input {
				class++
			}
			classes[class] = append(classes[class], r.TTFT)
		}
		c.AddEnd(&r)
	}
	m := c.Metrics()
	checkSummary(t, "TTFT", m.TTFT, exactly(ttft))
	checkSummary(t, "TPOT", m.TPOT, exactly(tpot))
	checkSummary(t, "normalised", m.Normalised, exactly(normalised))
	checkSummary(t, "E2E", m.E2E, exactly(e2e))
	for i, want := range classes {
		checkSummary(t, "class", m.Classes[i].TTFT, exactly(want))
	}
	slices.Sort(ends)
	if most := ends[len(ends)*99/100-1]; !nearBy(m.MostSeconds, most, 0.001) || m.Seconds != ends[len(ends)-1] {
		t.Errorf("99 %% in %v s and all in %v, want %v and %v", m.MostSeconds, m.Seconds, most, ends[len(ends)-1])
	}
	if rate := 0.99 * 0.98 * 20000 / m.MostSeconds; !nearBy(m.RequestsPerSecond, rate, 0.01) {
		t.Errorf("%v requests/s, want %v", m.RequestsPerSecond, rate)
	}
	sum, bad, low := 0, 0, policies.Tokens(0)
	for _, g := range m.Deciles {
		if g.Low < low || g.High <= g.Low || g.Requests < 1500 || g.Requests > 2600 {
			t.Errorf("decile %d – %d of %d requests after %d", g.Low, g.High, g.Requests, low)
		}
		low, sum, bad = g.High, sum+g.Requests, bad+g.Failed
	}
	if len(m.Deciles) != 10 || sum != 20000 || bad != failed {
		t.Errorf("%d deciles of %d requests, %d failed", len(m.Deciles), sum, bad)
	}
	if got := m.Timeline[30]; len(m.Timeline) != moments || !nearBy(got.Arrivals, 100, 0.05) || !nearBy(got.Tokens, 3000, 0.05) || !nearBy(got.TTFT, m.TTFT.Mean, 0.3) || got.Outstanding < 100 || got.Outstanding > 600 {
		t.Errorf("%d moments, the 30th %+v", len(m.Timeline), got)
	}
}

func TestBuckets(t *testing.T) {
	last := -1
	for length := policies.Tokens(0); length < 1<<18; length++ {
		b := bucketOf(length)
		if b < last || b > last+1 || lowest(b) > length || lowest(b+1) <= length {
			t.Fatalf("length %d is in bucket %d [%d, %d) after %d", length, b, lowest(b), lowest(b+1), last)
		}
		last = b
	}
}
