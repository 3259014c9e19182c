package policyslots

import (
	"testing"
	"time"
)

// TestAgainst: what hosts hold back in shadow is told, of those that told lately, and
// once of replicas that share a host.
func TestAgainst(t *testing.T) {
	says := func(node, host, state, reason string, age time.Duration) Report {
		return Report{Node: node, At: start.Add(-age), Statuses: []Status{{Kind: "refine", Host: host, Lives: []Life{{Generation: 5, State: state, Reason: reason}}}}}
	}
	worse := Held + "4 of 64 answers worse"
	for _, c := range []struct {
		name, want string
		reports    []Report
	}{
		{"nobody", "", nil},
		{"fine", "", []Report{says("r0", "", shadow, "", 0), says("r1", "", shadow, "has answered 3 of 200 calls", 0)}},
		{"one", "r1: 4 of 64 answers worse", []Report{says("r0", "", shadow, "", 0), says("r1", "", shadow, worse, 0)}},
		{"long ago", "", []Report{says("r1", "", shadow, worse, 2*Fresh)}},
		{"no more in shadow", "", []Report{says("r1", "", canary, worse, 0)}},
		{"one host", "local: 4 of 64 answers worse", []Report{says("r0", "local", shadow, worse, 0), says("r1", "local", shadow, worse, 0)}},
		{"two", "r0: 4 of 64 answers worse; and 1 other host says the like", []Report{says("r0", "", shadow, worse, 0), says("r1", "", shadow, worse, 0)}},
	} {
		if got := Against("refine", 5, start, c.reports); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	if got := Against("refine", 6, start, []Report{says("r0", "", shadow, worse, 0)}); got != "" {
		t.Errorf("another generation: %q", got)
	}
}
