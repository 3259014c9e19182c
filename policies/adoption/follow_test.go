package adoption_test

import (
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/testkit"
)

// TestFollowNeedsEvidence checks that a proposal which saves a tenth is adopted if the requests
// of a period are enough to show it: with a hundred of them, two standard errors are a fifth,
// with a thousand 6 %, and fewer if most of the work is that of a few long requests.
func TestFollowNeedsEvidence(t *testing.T) {
	for _, c := range []struct {
		what        string
		short, long float64 // requests in a period, with equal shares of the work
		adopt       bool
	}{
		{"a hundred alike", 50, 50, false},
		{"a thousand alike", 500, 500, true},
		{"a thousand, of which a few long ones are half of the work", 990, 10, false},
	} {
		s := &script{Cuts: []policies.Tokens{100}, Counts: []int{1, 1}, Best: 90, One: 100, Present: 100, Iterations: []float64{1}}
		m, err := adoption.New(adoption.Config{Planner: s, Follow: true, Seen: 1, Period: 10})
		testkit.NoError(t, err)
		in := adoption.Input{Model: "m", Replicas: []policies.Replica{{ID: "a", Model: "m"}, {ID: "b", Model: "m"}}}
		in.Workload.Cost = policies.Cost{D0: 1, D1: 1}
		in.Workload.Flow = policies.NewFlow([]policies.Tokens{0, 100})
		in.Plan = m.Step(in).Plan
		in.Plan.Epoch++
		in.Workload.Flow.Seen, in.Now = 1, 10
		copy(in.Workload.Flow.Tokens, []float64{50, 50})
		copy(in.Workload.Flow.Arrivals, []float64{c.short / 10, 0})
		copy(in.Workload.Flow.Crossings, []float64{0, c.long / 10})
		if d := m.Step(in); d.Adopt != c.adopt {
			t.Errorf("%s: %s, gain %.3g", c.what, d.Reason, d.Gain)
		}
	}
}
