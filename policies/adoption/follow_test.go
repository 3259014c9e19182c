package adoption_test

import (
	"math"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
)

// following returns a machine that adopts what a planner proposes: two stages of one replica each, at a cost beside the 100 of
// one stage, which is in force.
func following(best float64) (*adoption.Machine, adoption.Input) {
	s := &script{Cuts: []policies.Tokens{100}, Counts: []int{1, 1}, Best: best, One: 100, Present: 100, Iterations: []float64{1}}
	in := adoption.Input{Model: "m", Replicas: namedReplicas(2), Plan: policies.OneStagePlan("m", []policies.ReplicaID{"a", "b"})}
	in.Plan.Epoch = 1
	in.Workload.Flow = policies.NewFlow([]policies.Tokens{0, 100})
	in.Workload.Flow.Seen, in.Now = 1, 10
	return testkit.Must(adoption.New(adoption.Config{Planner: s, Adopt: adoption.Always, Seen: 1, Period: 10})), in
}

// TestFollowNeedsEvidence checks that a proposal which saves a tenth is adopted if the requests
// of a period are enough to show it: with a hundred of them, two standard errors are a fifth,
// with a thousand 6 %, and fewer if most of the work is that of a few long requests.
func TestFollowNeedsEvidence(t *testing.T) {
	cost := policies.Cost{D0: 1, D1: 1, D2: 1, D3: 1, D4: 1}
	for _, c := range []struct {
		what        string
		short, long float64 // requests in a period, with equal shares of the work
		adopt       bool
	}{
		{"a hundred alike", 50, 50, false},
		{"a thousand alike", 500, 500, true},
		{"a thousand, of which a few long ones are half of the work", 990, 10, false},
	} {
		// Whatever the work is made of.
		for part := range 4 {
			m, in := following(90)
			in.Workload.Cost = cost
			f := in.Workload.Flow
			in.Workload.Snapshot = []policies.Batch{{N: 1}, {N: 1}}
			copy([][]float64{f.Tokens, f.Reads, f.Prefill, f.Prefill2}[part], []float64{50, 50})
			copy(f.Arrivals, []float64{c.short / 10, 0})
			copy(f.Crossings, []float64{0, c.long / 10})
			if d := m.Step(in); d.Adopt != c.adopt {
				t.Errorf("%s, part %d: %s, gain %.3g", c.what, part, d.Reason, d.Gain)
			}
		}
	}
}

// TestFollowIdle checks that no plan is made for no work.
func TestFollowIdle(t *testing.T) {
	for n, reason := range map[float64]adoption.Reason{0: adoption.WarmingUp, 1: adoption.NewProposal} {
		m, in := following(50)
		in.Workload.Snapshot = []policies.Batch{{N: n}, {}}
		if d := m.Step(in); d.Reason != reason {
			t.Errorf("%v requests in flight: %s, want %s", n, d.Reason, reason)
		}
	}
}

// TestFirstPlanIsFollowed checks that the next better proposal replaces a plan in which a repair has merged the stages of the
// first one, however few requests show the gain, and that no other plan is replaced so.
func TestFirstPlanIsFollowed(t *testing.T) {
	type first struct {
		stages   int
		replaces policies.Epoch
	}
	for _, c := range []struct {
		what   string
		first  []first
		reason adoption.Reason
	}{
		{"no first plan", nil, adoption.SmallGain},
		{"two stages were merged", []first{{2, 4}}, adoption.NewProposal},
		{"the first plan has one stage", []first{{1, 4}}, adoption.SmallGain},
		{"the first plan did not come into force", []first{{2, 5}}, adoption.SmallGain},
		{"a proposal of as many stages did not come into force", []first{{2, 4}, {2, 5}}, adoption.NewProposal},
		{"a proposal of fewer stages did not come into force", []first{{2, 4}, {1, 5}}, adoption.NewProposal},
		{"a proposal of more stages did not come into force", []first{{2, 4}, {3, 5}}, adoption.SmallGain},
	} {
		m, in := following(90)
		for _, f := range c.first {
			m.ChooseFirst(policies.Partition{Cuts: make([]policies.Tokens, f.stages-1), Counts: make([]int, f.stages)}, f.replaces)
		}
		in.Plan.Epoch = 5
		in.Workload.Cost = policies.Cost{D0: 1, D1: 1}
		copy(in.Workload.Flow.Tokens, []float64{50, 50})
		copy(in.Workload.Flow.Arrivals, []float64{5, 5}) // a hundred in a period show a gain of a fifth
		if d := m.Step(in); d.Reason != c.reason {
			t.Errorf("%s: %s, want %s", c.what, d.Reason, c.reason)
		}
	}
}

// TestFirstPlanIsWorthIt checks that a first plan has stages only where stages in force would stay.
func TestFirstPlanIsWorthIt(t *testing.T) {
	for _, c := range []struct {
		adopt  adoption.Rule
		one    float64
		stages int
	}{
		{adoption.ByGain, 99, 1}, {adoption.ByGain, 101, 2}, {adoption.ByGain, math.Inf(1), 2}, {adoption.Always, 99, 2},
		{adoption.IfNeeded, 9000, 1}, {adoption.IfNeeded, math.Inf(1), 2},
	} {
		m := testkit.Must(adoption.New(adoption.Config{Planner: &script{}, Adopt: c.adopt}))
		got := m.ChooseFirst(policies.Partition{Cuts: []policies.Tokens{100}, Counts: []int{1, 2}, Cost: 90, OneStage: c.one}, 1)
		if total := got.Counts[0]; len(got.Counts) != c.stages || len(got.Cuts) != c.stages-1 || c.stages == 1 && total != 3 {
			t.Errorf("cost 90, one stage %v, adopt %s: %v with %v replicas", c.one, c.adopt, got.Cuts, got.Counts)
		}
	}
}
