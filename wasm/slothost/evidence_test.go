package slothost

import (
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
)

const second = policies.Second

// TestMissing checks what a phase says that it waits for.
func TestMissing(t *testing.T) {
	gate := Gate{Calls: 100, Compared: 50, Worse: 20, Differ: 100, Soak: 60 * second}
	figures := func(calls, compared, worse, differ uint64) lifecycle.Figures {
		return lifecycle.Figures{Calls: calls, Compared: compared, Worse: worse, Differ: differ}
	}
	for name, c := range map[string]struct {
		e    evidence
		want string
	}{
		"no call":                     {evidence{Gate: gate, lasted: 90 * second, patience: 60 * second}, ""},
		"none compared, in time":      {evidence{Gate: gate, Figures: figures(100, 0, 0, 0), lasted: 59 * second, patience: 60 * second}, "0 of 50 answers are compared"},
		"none compared, late":         {evidence{Gate: gate, Figures: figures(100, 0, 0, 0), lasted: 60 * second, patience: 60 * second}, "none of its answers could be compared yet"},
		"none asked for":              {evidence{Gate: Gate{Calls: 100}, Figures: figures(50, 0, 0, 0), lasted: 60 * second, patience: 60 * second}, "has answered 50 of 100 calls, the others in about 60 s"},
		"calls":                       {evidence{Gate: gate, Figures: figures(25, 25, 0, 0), lasted: 10 * second, patience: 600 * second}, "has answered 25 of 100 calls, the others in about 30 s"},
		"calls at its beginning":      {evidence{Gate: gate, Figures: figures(25, 25, 0, 0), patience: 600 * second}, "has answered 25 of 100 calls"},
		"answers":                     {evidence{Gate: gate, Figures: figures(100, 10, 0, 0), lasted: 10 * second, patience: 600 * second}, "10 of 50 answers are compared, the others in about 40 s"},
		"a step that patience ends":   {evidence{Gate: gate, Figures: figures(1, 1, 0, 0), lasted: 10 * second, patience: 600 * second, hasNextShare: true}, "has answered 1 of 100 calls, goes on in 10 min without the others"},
		"a step that it ends no more": {evidence{Gate: gate, Figures: figures(1, 1, 0, 0), lasted: 10 * second, patience: -1, hasNextShare: true}, "has answered 1 of 100 calls, the others in about 17 min"},
		"both at once":                {evidence{Gate: gate, Figures: figures(50, 50, 0, 0), lasted: 30 * second, patience: 40 * second, hasNextShare: true}, "has answered 50 of 100 calls, the others in about 30 s"},
		"time alone":                  {evidence{Gate: gate, Figures: figures(100, 50, 0, 0), lasted: 35 * second, patience: 600 * second}, "stays for 25 s more"},
		"nothing":                     {evidence{Gate: gate, Figures: figures(100, 50, 0, 0), lasted: 60 * second, patience: 600 * second}, ""},
		"too few to judge by":         {evidence{Gate: Gate{Worse: 20, Judged: 100}, Figures: figures(60, 50, 2, 0), lasted: 10 * second, patience: 600 * second}, "too few answers to judge by, the others in about 10 s"},
		"too few, judged soon":        {evidence{Gate: Gate{Worse: 20, Judged: 100}, Figures: figures(60, 1, 1, 0), lasted: 10 * second, patience: 60 * second}, "too few answers to judge by, is judged by the present ones in 50 s"},
		"too few, one more":           {evidence{Gate: Gate{Worse: 20, Judged: 1000}, Figures: figures(60, 2, 1, 0), lasted: 60 * second, patience: 60 * second}, "too few answers to judge by, one more is enough"},
	} {
		if got := c.e.missing(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestAgainst checks which reason counts of two, and when one is certain.
func TestAgainst(t *testing.T) {
	for name, c := range map[string]struct {
		gate    Gate
		figures lifecycle.Figures
		lasted  policies.Micros
		want    string
		certain bool
	}{
		"neither":                        {Gate{Worse: 100, Differ: 100, Judged: 100}, lifecycle.Figures{Compared: 50, Worse: 5, Differ: 5}, 0, "", false},
		"worse, perhaps":                 {Gate{Worse: 100, Differ: 500, Judged: 100}, lifecycle.Figures{Compared: 50, Worse: 6, Differ: 6}, 0, "worse", false},
		"worse":                          {Gate{Worse: 100, Differ: 500, Judged: 100}, lifecycle.Figures{Compared: 50, Worse: 11, Differ: 11}, 0, "worse", true},
		"differ, perhaps":                {Gate{Worse: 500, Differ: 100, Judged: 100}, lifecycle.Figures{Compared: 50, Differ: 6}, 0, "differ", false},
		"both, perhaps":                  {Gate{Worse: 100, Differ: 100, Judged: 100}, lifecycle.Figures{Compared: 50, Worse: 6, Differ: 9}, 0, "worse", false},
		"worse, perhaps, and differ":     {Gate{Worse: 100, Differ: 100, Judged: 100}, lifecycle.Figures{Compared: 50, Worse: 6, Differ: 11}, 0, "differ", true},
		"one bad one of many, late":      {Gate{Worse: 10, Differ: 1000, Judged: 1000}, lifecycle.Figures{Compared: 3, Worse: 1}, 60 * second, "", false},
		"one bad one of two, late":       {Gate{Worse: 10, Differ: 1000, Judged: 1000}, lifecycle.Figures{Compared: 2, Worse: 1}, 60 * second, "worse", false},
		"two bad ones, late":             {Gate{Worse: 10, Differ: 1000, Judged: 1000}, lifecycle.Figures{Compared: 9, Worse: 2}, 60 * second, "worse", true},
		"two bad ones, just before":      {Gate{Worse: 10, Differ: 1000, Judged: 1000}, lifecycle.Figures{Compared: 9, Worse: 2}, 60*second - 1, "worse", false},
		"two bad ones, the rest at hand": {Gate{Worse: 10, Differ: 1000, Judged: 1000}, lifecycle.Figures{Compared: 500, Worse: 6}, 60 * second, "worse", false},
	} {
		reason, certain := evidence{Gate: c.gate, Figures: c.figures, lasted: c.lasted, patience: 60 * second}.against()
		if certain != c.certain || (reason == "") != (c.want == "") || !strings.Contains(reason, c.want) {
			t.Errorf("%s: %q, certain %v, want %q, %v", name, reason, certain, c.want, c.certain)
		}
	}
}

// TestSpan checks that durations are rounded up, in a unit that fits.
func TestSpan(t *testing.T) {
	for of, want := range map[policies.Micros]string{
		1: "1 s", second: "1 s", second + 1: "2 s", 120 * second: "120 s", 120*second + 1: "3 min",
		7200 * second: "120 min", 7200*second + 1: "3 h",
	} {
		if got := span(of); got != want {
			t.Errorf("%d µs: %s, want %s", of, got, want)
		}
	}
}

// TestSharesAreTheSameEverywhere checks the parts into which hashes fall: hosts of different
// versions must agree on them.
func TestSharesAreTheSameEverywhere(t *testing.T) {
	for _, c := range []struct {
		request string
		g       lifecycle.Generation
		want    int
	}{{"", 0, 342}, {"", 1, 243}, {"a", 1, 402}, {"b", 1, 918}, {"chatcmpl-7f3a0c3e", 12, 641}, {"chatcmpl-7f3a0c3e", 13, 49}} {
		if got := partOf(hashRequest(c.request), c.g); got != c.want {
			t.Errorf("%q is in part %d of the canary of %d, want %d", c.request, got, c.g, c.want)
		}
	}
}

// TestLadderIsCopied checks that a machine does not share its ladder with its caller.
func TestLadderIsCopied(t *testing.T) {
	ladder := []int{1, 10}
	m, err := newMachine(lifecycle.Place, Gates{Ladder: ladder})
	if err != nil {
		t.Fatal(err)
	}
	if ladder[0] = 7; m.gates.Ladder[0] != 1 {
		t.Errorf("ladder %v", m.gates.Ladder)
	}
}
