package attach

import (
	"encoding/json"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/testkit"
)

// TestRangePattern compares patterns with the ranges that they stand for, at their ends and at
// random numbers, and exhaustively for small ones.
func TestRangePattern(t *testing.T) {
	for low := range int64(120) {
		for high := low; high < 120; high++ {
			re := regexp.MustCompile(rangePattern(low, high))
			for n := range int64(130) {
				if got := re.MatchString(strconv.FormatInt(n, 10)); got != (low <= n && n <= high) {
					t.Fatalf("%s for [%d, %d] matches %d: %v", re, low, high, n, got)
				}
			}
		}
	}
	rng := rand.New(rand.NewPCG(1, 7))
	longest := 0
	random := func() int64 { return rng.Int64() >> rng.IntN(63) }
	for range testkit.Size(2000, 20_000) {
		low, high := random(), random()
		low, high = min(low, high), max(low, high)
		pattern := rangePattern(low, high)
		longest = max(longest, len(pattern))
		re := regexp.MustCompile(pattern)
		for _, n := range []int64{0, low - 1, low, low + 1, high - 1, high, high + 1, random(), low + rng.Int64N(max(high-low, 1))} {
			if n < 0 {
				continue // below 0, or beyond the largest number
			}
			text := strings.Repeat("0", rng.IntN(3)) + strconv.FormatInt(n, 10)
			if got := re.MatchString(text); got != (low <= n && n <= high) {
				t.Fatalf("%s for [%d, %d] matches %s: %v", pattern, low, high, text, got)
			}
		}
		for _, text := range []string{"", "-1", "+5", "abc", "1.5", "1e3", " 5", "5 ", "0x5", "1,2", "99999999999999999999999"} {
			if re.MatchString(text) {
				t.Fatalf("%s for [%d, %d] matches %q", pattern, low, high, text)
			}
		}
	}
	if longest > 4096 {
		t.Errorf("the longest pattern has %d bytes; the Gateway API allows 4096", longest)
	}
}

// TestHTTPRouteStages chooses the rule of 100,000 random lengths as the Gateway API says (most
// header matches, then the first rule), for random plans: exactly the stage's rule matches, and
// the last one gets the rest.
func TestHTTPRouteStages(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 8))
	for range 100 {
		var cuts []policies.Tokens
		for range rng.IntN(policies.MaxStages) {
			cuts = append(cuts, policies.Tokens(1+rng.Int64N(1<<(1+rng.IntN(20)))))
		}
		slices.Sort(cuts)
		cuts = slices.Compact(cuts)
		o := testkit.Must(HTTPRoute(RouteConfig{Name: "r", Gateway: "g", Service: "llm", Port: 80, Cuts: cuts}))
		var route struct{ Spec routeSpec }
		testkit.NoError(t, json.Unmarshal(testkit.Must(json.Marshal(o)), &route))
		rules := route.Spec.Rules
		if n := len(rules); n != len(cuts)+1 || n > 16 || len(rules[n-1].Matches) != 0 {
			t.Fatalf("%d rules for %d boundaries, the last with %d matches", n, len(cuts), len(rules[n-1].Matches))
		}
		var patterns []*regexp.Regexp
		for _, r := range rules[:len(cuts)] {
			patterns = append(patterns, regexp.MustCompile(r.Matches[0].Headers[0].Value))
		}
		plan := policies.Plan{Stages: make([]policies.Stage, len(rules))}
		for k := range plan.Stages {
			if plan.Stages[k].High = policies.Unbounded; k < len(cuts) {
				plan.Stages[k].High = cuts[k]
			}
		}
		for range 1000 {
			n := policies.Tokens(rng.Int64N(1 << (1 + rng.IntN(22))))
			if len(cuts) > 0 && rng.IntN(3) == 0 {
				n = cuts[rng.IntN(len(cuts))] + policies.Tokens(rng.IntN(3)-1)
			}
			var matched []int
			for k, re := range patterns {
				if re.MatchString(n.String()) {
					matched = append(matched, k)
				}
			}
			want := []int{plan.StageOf(n)}
			if want[0] == len(cuts) {
				want = nil
			}
			if !slices.Equal(matched, want) {
				t.Fatalf("boundaries %v: %d tokens match rules %v, want %v", cuts, n, matched, want)
			}
		}
		for k, r := range rules {
			if want := "llm-s" + strconv.Itoa(k); r.BackendRefs[0].Name != want || r.Timeouts.Request != "0s" {
				t.Fatalf("rule %d: %+v, want Service %s and no timeout", k, r, want)
			}
		}
	}
	for name, c := range map[string]RouteConfig{
		"no names":           {Port: 80},
		"no port":            {Name: "r", Gateway: "g", Service: "s"},
		"not ascending":      {Name: "r", Gateway: "g", Service: "s", Port: 80, Cuts: []policies.Tokens{5, 5}},
		"zero":               {Name: "r", Gateway: "g", Service: "s", Port: 80, Cuts: []policies.Tokens{0}},
		"too many":           {Name: "r", Gateway: "g", Service: "s", Port: 80, Cuts: []policies.Tokens{1, 2, 3, 4, 5, 6, 7, 8, 9}},
		"unbounded boundary": {Name: "r", Gateway: "g", Service: "s", Port: 80, Cuts: []policies.Tokens{policies.Unbounded}},
	} {
		if _, err := HTTPRoute(c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
