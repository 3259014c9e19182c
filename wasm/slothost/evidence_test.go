package slothost

import (
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
)

const second = policies.Second

// TestMissing checks what a phase says that it waits for.
func TestMissing(t *testing.T) {
	gate := Gate{Calls: 100, Compared: 50, Worse: 20, Soak: 60 * second}
	figures := func(calls, compared, worse uint64) lifecycle.Figures {
		return lifecycle.Figures{Calls: calls, Compared: compared, Worse: worse}
	}
	for name, c := range map[string]struct {
		e    evidence
		want string
	}{
		"no call":                {evidence{Gate: gate, lasted: 90 * second, patience: 60 * second}, ""},
		"none compared, in time": {evidence{Gate: gate, Figures: figures(100, 0, 0), lasted: 59 * second, patience: 60 * second}, "0 of 50 answers are compared"},
		"none compared, late":    {evidence{Gate: gate, Figures: figures(100, 0, 0), lasted: 60 * second, patience: 60 * second}, "none of its answers could be compared yet"},
		"none asked for":         {evidence{Gate: Gate{Calls: 100}, Figures: figures(50, 0, 0), lasted: 60 * second, patience: 60 * second}, "has answered 50 of 100 calls"},
		"calls":                  {evidence{Gate: gate, Figures: figures(25, 25, 0), lasted: 10 * second, patience: 600 * second}, "has answered 25 of 100 calls"},
		"answers":                {evidence{Gate: gate, Figures: figures(100, 10, 0), lasted: 10 * second, patience: 600 * second}, "10 of 50 answers are compared"},
		"time alone":             {evidence{Gate: gate, Figures: figures(100, 50, 0), lasted: 35*second - 1, patience: 600 * second}, "stays for 26 s more"},
		"nothing":                {evidence{Gate: gate, Figures: figures(100, 50, 0), lasted: 60 * second, patience: 600 * second}, ""},
		"too few to judge by":    {evidence{Gate: Gate{Worse: 20, Judged: 100}, Figures: figures(60, 50, 2), lasted: 10 * second, patience: 600 * second}, "too few answers to judge by"},
	} {
		if got := c.e.missing(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestAgainst checks when there is a reason, and when it is certain.
func TestAgainst(t *testing.T) {
	for name, c := range map[string]struct {
		gate    Gate
		figures lifecycle.Figures
		lasted  policies.Micros
		want    string
		certain bool
	}{
		"none":                           {Gate{Worse: 100, Judged: 100}, lifecycle.Figures{Compared: 50, Worse: 5}, 0, "", false},
		"worse, perhaps":                 {Gate{Worse: 100, Judged: 100}, lifecycle.Figures{Compared: 50, Worse: 6}, 0, "worse", false},
		"worse":                          {Gate{Worse: 100, Judged: 100}, lifecycle.Figures{Compared: 50, Worse: 11}, 0, "worse", true},
		"one bad one of many, late":      {Gate{Worse: 10, Judged: 1000}, lifecycle.Figures{Compared: 3, Worse: 1}, 60 * second, "", false},
		"one bad one of two, late":       {Gate{Worse: 10, Judged: 1000}, lifecycle.Figures{Compared: 2, Worse: 1}, 60 * second, "worse", false},
		"two bad ones, late":             {Gate{Worse: 10, Judged: 1000}, lifecycle.Figures{Compared: 9, Worse: 2}, 60 * second, "worse", true},
		"two bad ones, just before":      {Gate{Worse: 10, Judged: 1000}, lifecycle.Figures{Compared: 9, Worse: 2}, 60*second - 1, "worse", false},
		"two bad ones, the rest at hand": {Gate{Worse: 10, Judged: 1000}, lifecycle.Figures{Compared: 500, Worse: 6}, 60 * second, "worse", false},
	} {
		reason, certain := evidence{Gate: c.gate, Figures: c.figures, lasted: c.lasted, patience: 60 * second}.against()
		if certain != c.certain || (reason == "") != (c.want == "") || !strings.Contains(reason, c.want) {
			t.Errorf("%s: %q, certain %v, want %q, %v", name, reason, certain, c.want, c.certain)
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
	m := testkit.Must(newMachine(lifecycle.Place, Gates{Ladder: ladder}))
	if ladder[0] = 7; m.gates.Ladder[0] != 1 {
		t.Errorf("ladder %v", m.gates.Ladder)
	}
}
