package fleet

import (
	"reflect"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/policytest"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/store"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// testRules returns the rules of a fleet of one model m with buckets 0, 16, 32.
func testRules(policy string) Rules {
	return Rules{
		Models: []Model{{
			Model: resources.Model{Name: "m", Context: 4096}, Edges: []policies.Tokens{0, 16, 32},
			QoE: policytest.H200QoE(), Cost: policies.Cost{D0: 0.01, D1: 1e-4, D2: 1e-5, D4: 1e-7},
		}},
		Policy: policy,
	}
}

func testReplica(id string) policies.Replica {
	return policies.Replica{
		ID: policies.ReplicaID(id), Model: "m", Address: "127.0.0.1:" + map[string]string{"r0": "1000", "r1": "1001", "r2": "1002", "r3": "1003"}[id],
		Capacity: policies.Capacity{KV: 100_000, Batch: 64},
	}
}

// testState returns a State with replicas r0 to r3 and its first plan in force.
func testState(t testing.TB, policy string) *State {
	t.Helper()
	return newState(t, testRules(policy))
}

// newState is like testState, with other rules.
func newState(t testing.TB, rules Rules) *State {
	t.Helper()
	s := testkit.Must(NewState(rules))
	list := []policies.Replica{testReplica("r0"), testReplica("r1"), testReplica("r2"), testReplica("r3")}
	settleState(s, start, Replicas{list})
	return s
}

// settleState applies an event and stores proposals until there are none.
func settleState(s *State, now time.Time, ev Event) (published *Snapshot) {
	e := s.Step(now, ev)
	for e.Propose != nil || e.Plan != nil {
		if e.Publish != nil {
			published = e.Publish
		}
		e = s.Step(now, carryOut(e))
	}
	if e.Publish != nil {
		published = e.Publish
	}
	return published
}

// carryOut carries the effects out that have an answer: it stores a proposal, or runs a planning.
func carryOut(e Effects) Event {
	if e.Propose != nil {
		return Stored{e.Propose.Object}
	}
	e.Plan.Run()
	return Planned{}
}

// TestHoldOfOtherClock checks that a hold-off which was stored by a clock that is ahead lasts no longer than it would have
// there.
func TestHoldOfOtherClock(t *testing.T) {
	for stored, want := range map[time.Duration]time.Duration{30 * time.Second: 30 * time.Second, 24 * time.Hour: time.Minute} {
		s := testState(t, PolicyDefault)
		now := start.Add(10 * time.Second)
		o := s.object
		o.Holds = []store.Hold{{Model: "m", Until: now.Add(stored), For: time.Minute}}
		settleState(s, now, Stored{o})
		until, length, ok := s.model("m").planner.Hold()
		if got := duration(until - s.micros(now)); !ok || got != want || duration(length) != time.Minute {
			t.Errorf("stored for another %v: held for %v of %v, want %v", stored, got, duration(length), want)
		}
	}
}

// TestFollowerKeepsHold checks that a control plane which follows stores hold-offs as they are, whatever its clock shows.
func TestFollowerKeepsHold(t *testing.T) {
	rules := testRules(PolicyDefault)
	rules.Name, rules.Shared = "b", true
	s := testkit.Must(NewState(rules))
	plan := policies.OneStagePlan("m", []policies.ReplicaID{"r0", "r1"})
	plan.Epoch = 1
	o := store.Object{
		Epoch: 1, Plans: []policies.Plan{plan}, Lease: store.Lease{Holder: "a", Expires: start},
		Holds: []store.Hold{{Model: "m", Until: start.Add(24 * time.Hour), For: time.Minute}},
	}
	settleState(s, start, Stored{o})
	settleState(s, start, Replicas{[]policies.Replica{testReplica("r0"), testReplica("r1")}})
	e := s.Step(start.Add(time.Second), Ordered{Order: fleetstate.Drain{Replica: "r0"}})
	if e.Propose == nil || !reflect.DeepEqual(e.Propose.Object.Holds, o.Holds) {
		t.Errorf("proposal %+v, want the holds %+v", e.Propose, o.Holds)
	}
}
