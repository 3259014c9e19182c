package fleet

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/testkit/plantest"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/planner"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/store"
)

// staged returns a State with the paper's policy and r0 r1 | r2 | r3, cut at 16 and 32;
// all replicas report.
func staged(t testing.TB) *State {
	t.Helper()
	return stage(testState(t, PolicyPaper))
}

// stagedWithLinks is like staged, but the cost of a migration depends on the links
// between the replicas.
func stagedWithLinks(t testing.TB) *State {
	t.Helper()
	rules := testRules(PolicyPaper)
	rules.Models[0].TokenBytes = 1e5
	return stage(newState(t, rules))
}

func stage(s *State) *State {
	plan := plantest.Parse("r0 r1 | r2 | r3")
	plan.Epoch = 7
	for i, cut := range []policies.Tokens{16, 32} {
		plan.Stages[i].High, plan.Stages[i+1].Low = cut, cut
	}
	settleState(s, start, Stored{store.Object{Epoch: 7, Plans: []policies.Plan{plan}}})
	for _, id := range []string{"r0", "r1", "r2", "r3"} {
		settleState(s, start, Reported{stagedReport(id)})
	}
	settleState(s, start, Tick{})
	return s
}

func stagedReport(id string) loadreport.Report {
	return loadreport.Report{
		Replica: policies.ReplicaID(id), Model: "m", EngineReady: true, Flow: policies.NewFlow([]policies.Tokens{0, 16, 32}),
		Snapshot: []policies.Batch{{N: 1, SumI: 2, SumI2: 4, SumL: 8}, {}, {N: 2, SumI: 30, SumI2: 500, SumL: 80}},
		Load:     policies.Load{Held: 1000, Promised: 500},
	}
}

// TestRefinementKeepsPlansValid sends random proposals, honest and not, to a State:
// each plan that comes into force is valid and keeps its members, and the proposals do
// not fill the history.
func TestRefinementKeepsPlansValid(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 1))
	s := staged(t)
	now, moved := start, 0
	for range 3000 {
		now = now.Add(300 * time.Millisecond)
		plan := s.models[0].planner.Plan()
		for _, id := range []string{"r0", "r1", "r2", "r3"} {
			r := stagedReport(id)
			r.Proposal = partition.BoundaryProposal{Epoch: plan.Epoch, Boundary: policies.Tokens(rng.Int64N(64))}
			if i := plan.StageOfReplica(r.Replica); i >= 0 {
				r.Proposal.Low = plan.Stages[i].Low
			}
			if rng.IntN(10) == 0 {
				r.Proposal = partition.BoundaryProposal{Epoch: policies.Epoch(rng.IntN(20)), Low: policies.Tokens(rng.Int64()), Boundary: policies.Tokens(rng.Int64())}
			}
			settleState(s, now, Reported{r})
		}
		settleState(s, now, Tick{})
		after := s.models[0].planner.Plan()
		testkit.NoError(t, after.Validate())
		for i, stage := range after.Stages {
			if !slices.Equal(stage.Replicas, plan.Stages[i].Replicas) {
				t.Fatalf("%s became %s", plantest.Format(plan), plantest.Format(after))
			}
		}
		if after.Epoch != plan.Epoch {
			moved++
		}
	}
	if moved < 100 {
		t.Errorf("%d refinements in 900 s", moved)
	}
	// One entry says that the planner kept the plan meanwhile, the other is the last
	// refinement.
	if n := len(s.history); n != 2 || s.history[0].Decision != planner.Kept || s.history[1].Epoch != s.models[0].planner.Plan().Epoch {
		t.Errorf("%d entries in the history: %+v", n, s.history)
	}
}
