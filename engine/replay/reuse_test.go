package replay

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestReuse checks the figures of a replay whose prompts share prefixes: the fake finds 2 of 7 prompt tokens.
func TestReuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{prefill: 200 * time.Millisecond, step: 10 * time.Millisecond}
		requests := every(100*time.Millisecond, 3, 1024, 11)
		for i := range requests {
			requests[i].Prefix = []uint64{1, uint64(2 + i)}
		}
		result, err := run(t, f, Config{Requests: requests, Speed: 2, SLO: SLO{TTFT: 0.1, TPOT: 0.003}})
		testkit.NoError(t, err)
		u := result.Reuse
		if u == nil || u.Source != FromUsage || u.PromptTokens != 21 || u.CachedTokens != 6 || u.LoadCV != -1 {
			t.Fatalf("%+v", u)
		}
		near(t, "hit rate", u.HitRate, 2.0/7)
		near(t, "ideal", u.Ideal, 1.0/3) // the first block of the second and third of two blocks each
		near(t, "share of the ideal", u.OfIdeal, 6.0/7)
		// In engine time, twice as fast: 0.4 s to the first token, 0.02 s between tokens.
		if a := result.Attainment; a == nil || a.Shares != [...]float64{0, 1, 1} {
			t.Errorf("attainment %+v", a)
		}
		plain, err := run(t, f, Config{Requests: every(100*time.Millisecond, 3, 1024, 11)})
		if err != nil || plain.Reuse != nil || plain.Attainment != nil {
			t.Errorf("of a trace without prefixes, without an SLO: %+v, %+v, %v", plain.Reuse, plain.Attainment, err)
		}
	})
}

// TestReuseOfEngines checks that the engines' counters count only where answers name no cached token.
func TestReuseOfEngines(t *testing.T) {
	for name, c := range map[string]struct {
		cached int64
		want   Reuse
	}{
		"reported":     {3, Reuse{PromptTokens: 10, CachedTokens: 3, Source: FromUsage, HitRate: 0.3, LoadCV: 0.5}},
		"not reported": {0, Reuse{PromptTokens: 40, CachedTokens: 20, Source: FromEngines, HitRate: 0.5, LoadCV: 0.5}},
	} {
		var u Reuse
		u.AddAnswer(&Record{Prompt: 10, Cached: c.cached})
		u.AddAnswer(&Record{Prompt: 10, Cached: 5, Error: Cut}) // a failed request counts in nothing
		u.Finish()
		u.AddEngines(40, 20, 0.5)
		if u.PromptTokens != c.want.PromptTokens || u.CachedTokens != c.want.CachedTokens || u.Source != c.want.Source || u.HitRate != c.want.HitRate || u.LoadCV != 0.5 || u.OfIdeal != 0 {
			t.Errorf("%s: %+v", name, u)
		}
	}
	var u Reuse
	u.Finish()
	u.AddEngines(0, 0, -1)
	if u.Source != "" || u.HitRate != 0 {
		t.Errorf("engines that looked nothing up: %+v", u)
	}
}

// TestAttainment checks the bounds: both latencies count, and failed requests count against it.
func TestAttainment(t *testing.T) {
	a := Attainment{SLO: SLO{TTFT: 1, TPOT: 0.1}}
	for _, r := range []Record{
		{TTFT: 5, Last: 5.5, Tokens: 2},                 // 5 × and 5 ×
		{TTFT: 5.1, Last: 5.2, Tokens: 2},               // 10 ×
		{TTFT: 1, Last: 2.1, Tokens: 2},                 // 20 × for its second token
		{TTFT: 1, Last: 1, Tokens: 1, Error: Malformed}, // failed
		{TTFT: 21, Last: 21, Tokens: 1},                 // none
	} {
		a.Add(&r, 1)
	}
	if a.Shares != [...]float64{0.2, 0.4, 0.6} {
		t.Errorf("%v", a.Shares)
	}
	slow := Attainment{SLO: SLO{TTFT: 1, TPOT: 0.1}}
	slow.Add(&Record{TTFT: 6, Last: 6, Tokens: 1}, 0.5) // 3 s of engine time
	if slow.Shares[0] != 1 {
		t.Errorf("at speed 0.5: %v", slow.Shares)
	}
}
