package fleet

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/outlier"
	"github.com/cascadeinfer/cascade/xds/internal/orders"
	"github.com/cascadeinfer/cascade/xds/internal/planhistory"
	"github.com/cascadeinfer/cascade/xds/internal/plantest"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/resources"
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

// TestRefinementIsOneRouteTable checks that a new boundary changes only one route table
// of the resources that proxies receive, for every kind of client.
func TestRefinementIsOneRouteTable(t *testing.T) {
	s := staged(t)
	build := func() resources.Set {
		set, err := resources.Build(s.Snapshot(start).View(resources.Settings{}))
		if err != nil {
			t.Fatal(err)
		}
		if err := resources.Prove(set); err != nil {
			t.Fatal(err)
		}
		return set
	}
	before := build()
	for _, id := range []string{"r0", "r1"} {
		r := stagedReport(id)
		r.Proposal = loadreport.Proposal{Epoch: 7, Low: 0, Boundary: 20}
		settleState(s, start, Reported{r})
	}
	published := settleState(s, start.Add(time.Second), Tick{})
	if published == nil || published.Epoch != 8 || published.Models[0].Plan.Stages[0].High != 20 || published.Models[0].Plan.Stages[1].Low != 20 {
		t.Fatalf("published %+v", published)
	}
	after := build()
	for _, typ := range after.Types() {
		changed := resources.ChangedNames(before, after, typ)
		if typ == resources.RouteType {
			want := []string{resources.RouteName, resources.GRPCRouteName("m"), resources.SplitModelRouteName("m"), resources.SplitRouteName, resources.FederatedRouteName("m")}
			if !slices.Equal(changed, want) {
				t.Errorf("route tables %v have changed", changed)
			}
		} else if len(changed) > 0 {
			t.Errorf("%s %v have changed", typ, changed)
		}
	}
}

// TestReplyHasBoundary checks that the reply to a replica describes the end of its
// stage as its refiner needs it.
func TestReplyHasBoundary(t *testing.T) {
	s := staged(t)
	reply, _ := s.Reply("r0")
	b := reply.Boundary
	if b == nil || b.Epoch != 7 || b.At != 16 || b.Low != 0 || b.High != 32 || b.Peers != 2 || b.Successors != 1 ||
		!slices.Equal(b.Next, stagedReport("r2").Snapshot) {
		t.Errorf("the reply to r0 has %+v", b)
	}
	m := reply.Encode(9)
	if r := m.GetRefine(); m.GetSequence() != 9 || m.GetEpoch() != 7 || r.GetHigh() != 32 || r.GetPeers() != 2 || len(r.GetNext()) != 3 || r.GetNext()[2].GetSumInput2() != 500 {
		t.Errorf("on the wire: %v", m)
	}
	if reply, _ = s.Reply("r2"); reply.Encode(1).GetRefine().GetHigh() != 0 {
		t.Error("the open end is not 0 on the wire")
	}
	if reply, _ = s.Reply("r3"); reply.Boundary != nil {
		t.Error("the last stage has a boundary")
	}
	other := stagedReport("r0")
	other.Flow = policies.NewFlow([]policies.Tokens{0, 5, 9})
	settleState(s, start, Reported{other})
	if reply, _ = s.Reply("r0"); reply.Boundary != nil {
		t.Error("the reply to a replica with other buckets has the batches")
	}
	for _, c := range []struct {
		policy, refine string
		want           bool
	}{{"", "", false}, {PolicyPaper, "", true}, {PolicyPaper, RefineOff, false}, {"", RefineOn, true}} {
		if on := (Rules{Policy: c.policy, Refine: c.refine}).withDefaults().Refine == RefineOn; on != c.want {
			t.Errorf("policy %q, refine %q: %v", c.policy, c.refine, on)
		}
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
			r.Proposal = loadreport.Proposal{Epoch: plan.Epoch, Boundary: policies.Tokens(rng.Int64N(64))}
			if i := plan.StageOfReplica(r.Replica); i >= 0 {
				r.Proposal.Low = plan.Stages[i].Low
			}
			if rng.IntN(10) == 0 {
				r.Proposal = loadreport.Proposal{Epoch: policies.Epoch(rng.IntN(20)), Low: policies.Tokens(rng.Int64()), Boundary: policies.Tokens(rng.Int64())}
			}
			settleState(s, now, Reported{r})
		}
		settleState(s, now, Tick{})
		after := s.models[0].planner.Plan()
		if err := after.Validate(); err != nil {
			t.Fatal(err)
		}
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
	if n := len(s.history); n != 2 || s.history[0].Decision != planhistory.Kept || s.history[1].Epoch != s.models[0].planner.Plan().Epoch {
		t.Errorf("%d entries in the history: %+v", n, s.history)
	}
}

// TestStageMean checks that the mean in a reply covers the tokens held by the replicas
// of the stage that report and are ready, so that it makes no replica an outlier by
// accident.
func TestStageMean(t *testing.T) {
	s := staged(t)
	excess := func(id string) policies.Tokens {
		reply, ok := s.Reply(policies.ReplicaID(id))
		if !ok {
			t.Fatalf("no reply for %s", id)
		}
		return outlier.Detector{}.Excess(s.registry.Get(policies.ReplicaID(id)).Report.Load.Held, policies.Tokens(reply.MeanHeld))
	}
	mean := func(id string) float64 { reply, _ := s.Reply(policies.ReplicaID(id)); return reply.MeanHeld }
	if got := mean("r0"); got != 1000 {
		t.Errorf("mean %v of 1000 and 1000", got)
	}
	busy := stagedReport("r0")
	busy.Load = policies.Load{Held: 3000, Promised: 1500}
	settleState(s, start, Reported{busy})
	settleState(s, start, Tick{})
	if got := mean("r1"); got != 2000 {
		t.Errorf("mean %v of 3000 and 1000", got)
	}
	if excess("r0") != 1000 || excess("r1") != 0 {
		t.Errorf("r0 is %v above the mean, r1 %v", excess("r0"), excess("r1"))
	}
	// A dead engine holds no tokens. This does not turn the other replicas into
	// outliers.
	dead := stagedReport("r1")
	dead.EngineReady, dead.Load = false, policies.Load{}
	settleState(s, start, Reported{dead})
	settleState(s, start, Tick{})
	if mean("r0") != 3000 || excess("r0") != 0 {
		t.Errorf("beside a dead engine r0 has mean %v", mean("r0"))
	}
	// A false report counts for at most two caches.
	lie := stagedReport("r1")
	lie.Load.Held = loadreport.MaxTokens
	settleState(s, start, Reported{lie})
	settleState(s, start, Tick{})
	if got := mean("r0"); got != (3000+200_000)/2 {
		t.Errorf("beside a liar r0 has mean %v", got)
	}
	// A replica outside its stage is compared with itself.
	settleState(s, start, Ordered{orders.Drain{Replica: "r0"}})
	if mean("r0") != 3000 || excess("r0") != 0 {
		t.Errorf("drained, r0 has mean %v", mean("r0"))
	}
	if _, ok := s.Reply("r9"); ok {
		t.Error("an unknown replica gets a reply")
	}
}
