package policyslots

import (
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
)

// TestBlocked checks that Blocked counts recent reports only, and replicas that share
// a host once.
func TestBlocked(t *testing.T) {
	says := func(node, host string, p lifecycle.Phase, blocked string, age time.Duration) Report {
		return Report{Node: node, At: start.Add(-age), Statuses: []lifecycle.SlotStatus{{Kind: lifecycle.Refine, Host: host,
			Modules: []lifecycle.Status{{Generation: 5, Phase: p, Blocked: blocked}}}}}
	}
	const worse = "4 of 64 answers worse"
	for _, c := range []struct {
		name, want string
		reports    []Report
	}{
		{"no report", "", nil},
		{"fine", "", []Report{says("r0", "", lifecycle.Shadow, "", 0), {Node: "r1", At: start, Statuses: []lifecycle.SlotStatus{{Kind: lifecycle.Refine,
			Modules: []lifecycle.Status{{Generation: 5, Phase: lifecycle.Shadow, Reason: "has answered 3 of 200 calls"}}}}}}},
		{"one", "r1: 4 of 64 answers worse", []Report{says("r0", "", lifecycle.Shadow, "", 0), says("r1", "", lifecycle.Shadow, worse, 0)}},
		{"long ago", "", []Report{says("r1", "", lifecycle.Shadow, worse, 2*FreshFor)}},
		{"no more in shadow", "", []Report{says("r1", "", lifecycle.Canary, worse, 0)}},
		{"one host", "local: 4 of 64 answers worse", []Report{says("r0", "local", lifecycle.Shadow, worse, 0), says("r1", "local", lifecycle.Shadow, worse, 0)}},
		{"two", "r0: 4 of 64 answers worse; 1 other host reports the same", []Report{says("r0", "", lifecycle.Shadow, worse, 0), says("r1", "", lifecycle.Shadow, worse, 0)}},
	} {
		if got := Blocked(lifecycle.Refine, 5, start, c.reports); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	if got := Blocked(lifecycle.Refine, 6, start, []Report{says("r0", "", lifecycle.Shadow, worse, 0)}); got != "" {
		t.Errorf("another generation: %q", got)
	}
}
