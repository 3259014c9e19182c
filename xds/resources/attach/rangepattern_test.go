package attach

import (
	"encoding/json"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// ranged is the patterns of a range.
type ranged []*regexp.Regexp

func compile(low, high int64) (out ranged) {
	for _, p := range rangePatterns(low, high) {
		out = append(out, regexp.MustCompile(p))
	}
	return out
}

// matches returns how many of the patterns match.
func (r ranged) matches(text string) (n int) {
	for _, re := range r {
		if re.MatchString(text) {
			n++
		}
	}
	return n
}

// contains returns 1 for a number in the range.
func contains(low, n, high int64) int {
	if low <= n && n <= high {
		return 1
	}
	return 0
}

// TestRangePatterns compares patterns with the ranges that they stand for, at their ends and at
// random numbers, and exhaustively for small ones. Exactly one pattern matches each number.
func TestRangePatterns(t *testing.T) {
	for low := range int64(120) {
		for high := low; high < 120; high++ {
			r := compile(low, high)
			for n := range int64(130) {
				if got := r.matches(strconv.FormatInt(n, 10)); got != contains(low, n, high) {
					t.Fatalf("%d of %v for [%d, %d] match %d", got, r, low, high, n)
				}
			}
		}
	}
	rng := rand.New(rand.NewPCG(1, 7))
	random := func() int64 { return rng.Int64() >> rng.IntN(63) }
	for range testkit.Size(2000, 20_000) {
		low, high := random(), random()
		low, high = min(low, high), max(low, high)
		r := compile(low, high)
		for _, n := range []int64{0, low - 1, low, low + 1, high - 1, high, high + 1, random(), low + rng.Int64N(max(high-low, 1))} {
			if n < 0 {
				continue // below 0, or beyond the largest number
			}
			text := strings.Repeat("0", rng.IntN(3)) + strconv.FormatInt(n, 10)
			if got := r.matches(text); got != contains(low, n, high) {
				t.Fatalf("%d of %v for [%d, %d] match %s", got, r, low, high, text)
			}
		}
		for _, text := range []string{"", "-1", "+5", "abc", "1.5", "1e3", " 5", "5 ", "0x5", "1,2", "99999999999999999999999"} {
			if r.matches(text) > 0 {
				t.Fatalf("%v for [%d, %d] match %q", r, low, high, text)
			}
		}
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
		var patterns []ranged
		all := 0
		for _, r := range rules[:len(cuts)] {
			var of ranged
			for _, m := range r.Matches {
				of = append(of, regexp.MustCompile(m.Headers[0].Value))
			}
			patterns, all = append(patterns, of), all+len(of)
		}
		if all > 128 {
			t.Fatalf("boundaries %v: %d matches; the Gateway API allows 128 in a route", cuts, all)
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
			for k, r := range patterns {
				for range r.matches(n.String()) {
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
