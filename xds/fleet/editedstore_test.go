package fleet

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/internal/orders"
	"github.com/cascadeinfer/cascade/xds/store"
)

// twoStages returns a plan with r0 and r1 below a cut, and r2 and r3 above it.
func twoStages(epoch policies.Epoch, cut policies.Tokens) policies.Plan {
	return policies.Plan{Model: "m", Epoch: epoch, Stages: []policies.Stage{
		{Low: 0, High: cut, Replicas: []policies.ReplicaID{"r0", "r1"}},
		{Low: cut, High: policies.Unbounded, Replicas: []policies.ReplicaID{"r2", "r3"}},
	}}
}

// restoredState returns a control plane that has read a stored object and has configured
// replicas.
func restoredState(t *testing.T, rules Rules, o store.Object, ids ...string) *State {
	t.Helper()
	s, err := NewState(rules)
	if err != nil {
		t.Fatal(err)
	}
	settleState(s, start, Stored{o})
	var list []policies.Replica
	for _, id := range ids {
		list = append(list, testReplica(id))
	}
	settleState(s, start, Replicas{list})
	return s
}

// TestPlanOlderThanPast checks a plan that an operator restored by editing the store
// and that is older than the former plans: the plan that replaces it can still be
// stored.
func TestPlanOlderThanPast(t *testing.T) {
	o := store.Object{
		Epoch: 9, Plans: []policies.Plan{twoStages(5, 16)},
		FormerPlans: []store.FormerPlan{{Model: "m", Epoch: 4, Counts: []int{4}}, {Model: "m", Epoch: 8, Cuts: []policies.Tokens{32}, Counts: []int{2, 2}}},
	}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	s := restoredState(t, testRules(PolicyDefault), o, sharedIDs...)
	e := s.Step(start, Ordered{orders.Pin{Model: "m", Epoch: 4}})
	if e.Propose == nil {
		t.Fatal("nothing is proposed")
	}
	if err := e.Propose.Object.Validate(); err != nil {
		t.Errorf("the next plan cannot be stored: %v", err)
	}
}

// TestFollowerKeepsOthers checks that an order that a follower stores keeps the drains
// of replicas, and the plans of models, that only the other control planes have
// configured.
func TestFollowerKeepsOthers(t *testing.T) {
	rules := testRules(PolicyDefault)
	rules.Name, rules.Shared = "b", true
	o := store.Object{
		Epoch: 1, Plans: []policies.Plan{twoStages(1, 16)}, Drained: []policies.ReplicaID{"r3"},
		Lease: store.Lease{Holder: "a", Expires: start.Add(time.Hour)},
	}
	other := policies.OneStagePlan("other", []policies.ReplicaID{"x"})
	other.Epoch = 1
	o.Plans = append(o.Plans, other)
	s := restoredState(t, rules, o, "r0", "r1", "r2")
	e := s.Step(start, Ordered{orders.Drain{Replica: "r0"}})
	if e.Propose == nil || !slices.Equal(e.Propose.Object.Drained, []policies.ReplicaID{"r0", "r3"}) {
		t.Fatalf("proposed: %+v", e.Propose)
	}
	if err := e.Propose.Object.Validate(); err != nil || len(e.Propose.Object.Plans) != 2 {
		t.Errorf("proposed: %+v, %v", e.Propose.Object.Plans, err)
	}
}

// TestRollbackWithoutReplicas checks that a rollback to a plan that needs more replicas
// than the fleet has is refused.
func TestRollbackWithoutReplicas(t *testing.T) {
	o := store.Object{
		Epoch: 9, Plans: []policies.Plan{policies.OneStagePlan("m", []policies.ReplicaID{"r0"})},
		FormerPlans: []store.FormerPlan{{Model: "m", Epoch: 4, Cuts: []policies.Tokens{16}, Counts: []int{2, 2}}},
	}
	o.Plans[0].Epoch = 9
	s := restoredState(t, testRules(PolicyDefault), o, "r0")
	if err := s.CheckOrder(orders.Rollback{Model: "m"}); !errors.Is(err, orders.ErrSamePlan) {
		t.Errorf("rollback: %v", err)
	}
	if err := s.CheckOrder(orders.Rollback{Model: "m", Keep: true}); err != nil {
		t.Errorf("rollback and pin: %v", err)
	}
}
