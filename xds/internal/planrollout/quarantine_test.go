package planrollout

import (
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestFirstSnapshotIsApplied checks that a cluster and a listener that a proxy refused
// before a restart are applied after it, because no other version is known.
// Refused versions of later snapshots stay quarantined.
func TestFirstSnapshotIsApplied(t *testing.T) {
	resource := func(typ, name, version string) *resources.Resource {
		return &resources.Resource{Type: typ, Name: name, Version: version}
	}
	build := func(v resources.View) (resources.Set, error) {
		if v.Plans[0].Epoch == 1 {
			return resources.NewSet(resource(resources.ClusterType, "c", "1"), resource(resources.ListenerType, "l", "1"), resource(resources.RouteType, "r", "1"))
		}
		return resources.NewSet(resource(resources.ClusterType, "c", "2"), resource(resources.ListenerType, "l", "1"), resource(resources.RouteType, "r", "1"))
	}
	snapshot := func(epoch policies.Epoch) *Snapshot {
		v := resources.View{Plans: []policies.Plan{{Model: "m", Epoch: epoch}}}
		s, err := build(v)
		if err != nil {
			t.Fatal(err)
		}
		return &Snapshot{View: v, Set: s}
	}
	r, err := New(Config{
		Groups: []string{""}, Watch: time.Second, AckTimeout: time.Second, PollInterval: time.Second,
		Build: build, Prove: func(resources.Set) error { return nil }, CheckMembers: checkTextMembers,
	})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(0, 0)
	refusal := func(typ, name, version string) Refusal {
		return Refusal{Type: typ, Name: name, Version: version, Node: "odd", Text: "no"}
	}
	r.Step(now, Quarantine{[]Refusal{refusal(resources.ClusterType, "c", "1"), refusal(resources.ListenerType, "l", "1"), refusal(resources.ClusterType, "c", "2")}})
	out := r.Step(now, SetTarget{Snapshot: snapshot(1)})
	if len(out.Applies) != 1 || out.Applies[0].Set.Get(resources.ClusterType, "c") == nil || out.Applies[0].Set.Get(resources.ListenerType, "l") == nil {
		t.Fatalf("first snapshot not applied: %+v, %+v", out, r.Report())
	}
	// A repeated refusal, as with every change of the store, changes nothing.
	if out = r.Step(now, Quarantine{[]Refusal{refusal(resources.ClusterType, "c", "1")}}); len(out.Applies) != 0 {
		t.Errorf("repeated refusal applied %+v", out.Applies)
	}
	for _, s := range r.Step(now, SetTarget{Snapshot: snapshot(2)}).Applies {
		if c := s.Set.Get(resources.ClusterType, "c"); c != nil && c.Version == "2" {
			t.Error("applied a quarantined version of the second snapshot")
		}
	}
}
