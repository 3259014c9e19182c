package planrollout

import (
	"strconv"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
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
	released := 0
	for _, n := range out.Notes {
		if n.Warn && n.Text == "refused version applied because nothing can replace it" {
			released++
		}
	}
	if released != 2 {
		t.Errorf("%d of two released versions are noted: %+v", released, out.Notes)
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

func version(typ, name, version string) *resources.Resource {
	return &resources.Resource{Type: typ, Name: name, Version: version}
}

// TestQuarantineBound checks that the oldest quarantined version is dropped first, and that
// one is counted once.
func TestQuarantineBound(t *testing.T) {
	q := newVersionTracker()
	for i := range maxQuarantined + 2 {
		f := Refusal{Type: resources.ClusterType, Name: "c", Version: strconv.Itoa(i), Node: "n"}
		if first, again := q.quarantine(f), q.quarantine(f); !first || again {
			t.Fatalf("version %d: new is %v, and then %v", i, first, again)
		}
		if want := min(i+1, maxQuarantined); len(q.order) != want || len(q.quarantined) != want {
			t.Fatalf("after version %d: %d are quarantined (%d), want %d", i, len(q.quarantined), len(q.order), want)
		}
	}
	if q.quarantine(Refusal{Type: resources.ClusterType, Name: "c"}) {
		t.Error("no version was quarantined")
	}
	if q.order[0].version != "2" || q.quarantineCount != maxQuarantined+2 {
		t.Errorf("the oldest is %+v of %d ever", q.order[0], q.quarantineCount)
	}
	set := testkit.Must(resources.NewSet(version(resources.ClusterType, "c", "5"), version(resources.ClusterType, "d", "5"), version(resources.RouteType, "c", "5")))
	if n := q.countQuarantined(set); n != 1 {
		t.Errorf("%d of the set are quarantined, want 1", n)
	}
}

// TestReplaceRefused checks what becomes of quarantined and of suspended versions in a set.
func TestReplaceRefused(t *testing.T) {
	good, bad := version(resources.ClusterType, "c", "1"), version(resources.ClusterType, "c", "2")
	other, slot := version(resources.ClusterType, "d", "1"), version(resources.ExtensionType, "s", "2")
	quarantine := func(list ...*resources.Resource) versionTracker {
		q := newVersionTracker()
		for _, r := range list {
			q.quarantine(Refusal{Type: r.Type, Name: r.Name, Version: r.Version, Node: "odd", Text: "no"})
		}
		return q
	}
	for name, c := range map[string]struct {
		q       versionTracker
		set     []*resources.Resource
		h       groupSets
		want    []*resources.Resource
		lost    bool
		refused bool
	}{
		"nothing is refused":        {q: quarantine(), set: []*resources.Resource{bad, other}, want: []*resources.Resource{bad, other}},
		"another is refused":        {q: quarantine(good), set: []*resources.Resource{bad, other}, want: []*resources.Resource{bad, other}},
		"replaced":                  {q: quarantine(bad), set: []*resources.Resource{bad, other}, h: groupSets{acked: testkit.Must(resources.NewSet(good))}, want: []*resources.Resource{good, other}, lost: true},
		"no other version":          {q: quarantine(bad), set: []*resources.Resource{bad, other}, refused: true},
		"it is in force":            {q: quarantine(bad), set: []*resources.Resource{bad, other}, h: groupSets{applied: testkit.Must(resources.NewSet(bad))}, want: []*resources.Resource{bad, other}},
		"another is in force":       {q: quarantine(bad), set: []*resources.Resource{bad, other}, h: groupSets{applied: testkit.Must(resources.NewSet(other))}, refused: true},
		"a slot's is left out":      {q: quarantine(slot), set: []*resources.Resource{slot, version(resources.ExtensionType, "u", "1")}, want: []*resources.Resource{version(resources.ExtensionType, "u", "1")}},
		"suspended, sent once more": {q: quarantine(), set: []*resources.Resource{good, other}, h: groupSets{suspended: map[key]bool{keyOf(good): true}}, want: []*resources.Resource{version(resources.ClusterType, "c", "1+"), other}},
		"suspended and quarantined": {q: quarantine(bad), set: []*resources.Resource{bad}, h: groupSets{applied: testkit.Must(resources.NewSet(bad)), suspended: map[key]bool{keyOf(bad): true}}, want: []*resources.Resource{bad}},
	} {
		set := testkit.Must(resources.NewSet(c.set...))
		got, lost, err := c.q.replaceRefused(set, c.h)
		if (err != nil) != c.refused || (lost != "") != c.lost {
			t.Errorf("%s: lost %q, %v", name, lost, err)
			continue
		}
		n := 0
		for _, typ := range got.Types() {
			n += len(got.All(typ))
		}
		for _, r := range c.want {
			if !c.refused && (n != len(c.want) || !holdsVersion(got, r)) {
				t.Errorf("%s: %d resources without %s %s", name, n, r.Name, r.Version)
			}
		}
	}
}

// TestOmitRefused checks that refused routes are left out where a group has none, and
// endpoints only if asked.
func TestOmitRefused(t *testing.T) {
	route, end := version(resources.RouteType, "r", "1"), version(resources.EndpointType, "e", "1")
	q := newVersionTracker()
	for _, r := range []*resources.Resource{route, end} {
		q.quarantine(Refusal{Type: r.Type, Name: r.Name, Version: r.Version})
	}
	set := testkit.Must(resources.NewSet(route, end, version(resources.RouteType, "s", "1"), version(resources.EndpointType, "f", "1")))
	for _, c := range []struct {
		applied       []*resources.Resource
		withEndpoints bool
		routes, ends  int
	}{{nil, false, 1, 2}, {nil, true, 1, 1}, {[]*resources.Resource{version(resources.RouteType, "r", "0")}, true, 2, 1}, {[]*resources.Resource{route, end}, true, 2, 2}} {
		got, omitted := q.omitRefused(set, testkit.Must(resources.NewSet(c.applied...)), c.withEndpoints)
		if r, e := len(got.All(resources.RouteType)), len(got.All(resources.EndpointType)); r != c.routes || e != c.ends || omitted != (r+e < 4) {
			t.Errorf("%+v: %d routes, %d endpoints, omitted %v", c, r, e, omitted)
		}
	}
}

// TestRefusedPlanIsNotReplaced checks that a follower's plan is never replaced alone by an older
// one, as endpoints are: its plan goes back as a whole.
func TestRefusedPlanIsNotReplaced(t *testing.T) {
	for typ, replaced := range map[string]bool{resources.EndpointType: true, resources.RoutingType: false, resources.RouteType: false} {
		q := newVersionTracker()
		q.recordAcked(testkit.Must(resources.NewSet(version(typ, "x", "1"))), nil)
		q.quarantine(Refusal{Type: typ, Name: "x", Version: "2", Text: "no"})
		got, _, err := q.replaceRefused(testkit.Must(resources.NewSet(version(typ, "x", "2"))), groupSets{})
		if (err == nil) != replaced || replaced && got.Get(typ, "x").Version != "1" {
			t.Errorf("%s: %v, replaced: want %v", typ, err, replaced)
		}
	}
}
