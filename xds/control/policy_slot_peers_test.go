package control

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/store"
)

// TestPolicyPeers checks that a control plane runs policies in its own slots and gets
// configurations of those slots only, and that it sees the state of another one's own
// slots, which keeps a policy from becoming stable before both run it and rolls it back
// if it fails there; a stopped control plane is not waited for.
func TestPolicyPeers(t *testing.T) {
	f := newFakeFleet(t, 1)
	st := store.New(store.NewMemory())
	for name, text := range map[string]string{
		"gone": `{"name":"gone","slots":{"slots":[{"kind":"partition","active":"99","floor":"99"}]}}`,
		"x":    "{", "y": `{"name":"y","slots":7}`, "z": `{"name":"z"}`,
	} {
		testkit.NoError(t, st.PutNote(t.Context(), name, []byte(text)))
	}
	run := func(name string, own *fakeSlots) *runningControl {
		r := fastRules()
		r.Name, r.Shared = name, true
		return startControl(t, Config{Rules: r, Replicas: f.list, Store: st, Admitter: new(fakeAdmitter), Slots: own})
	}
	ownA, ownB := new(fakeSlots), &fakeSlots{refuse: errors.New("not here")}
	a := run("a", ownA)
	f.startReports(t, a)
	waitFor(t, a, "a plans", func(s Status) bool { return s.Planner.Leads })
	b := run("b", ownB)
	f.startReports(t, b)
	node := func(s PolicySlot, name string) PolicyNode {
		i := slices.IndexFunc(s.Nodes, func(n PolicyNode) bool { return n.Node == name })
		if i < 0 {
			return PolicyNode{}
		}
		return s.Nodes[i]
	}
	stable := func(generation lifecycle.Generation) func(PolicySlot) bool {
		return func(s PolicySlot) bool { return s.Stable != nil && s.Stable.Generation == generation }
	}

	for _, c := range []*runningControl{a, b} {
		waitForOwnSlot(t, c, "all control planes", func(s PolicySlot) bool { return len(s.Nodes) == 3 })
	}

	// a runs it, b refuses it: both see both, and it is not stable.
	requireOK(t)(push(t, b, "slot=place", []byte("x"), "generation 1"))
	requireOK(t)(push(t, b, "slot=partition&goal=active&scope=m", []byte("x"), "generation 1"))
	for _, c := range []*runningControl{a, b} {
		s := waitForOwnSlot(t, c, "both nodes", func(s PolicySlot) bool {
			return node(s, "control/a").Active == 1 && node(s, "control/b").Refused == "not here"
		})
		if len(s.Nodes) != 3 || node(s, "control/gone").Active != 99 || s.Candidate == nil {
			t.Errorf("%+v", s.Nodes)
		}
		now := time.Now()
		if verdict, why := policyslots.Find(c.slots.stored(), "partition").Judge(now, c.slots.reports(now)); verdict != policyslots.Wait {
			t.Errorf("a candidate that one control plane refuses: %d, %s", verdict, why)
		}
	}
	testkit.NoError(t, st.PutNote(t.Context(), "gone", nil))
	ownB.mu.Lock()
	ownB.refuse = nil
	ownB.mu.Unlock()
	requireOK(t)(push(t, a, "slot=partition&goal=active&scope=m", []byte("y"), "generation 2"))
	waitForOwnSlot(t, b, "2 is stable", stable(2))
	waitFor(t, b, "a summary with both", func(s Status) bool {
		return slices.ContainsFunc(s.Policies, func(p PolicySummary) bool { return p.Slot == lifecycle.Partition && p.Nodes == 2 && p.OnStable == 2 })
	})

	// A module that fails on the control plane that does not plan is revoked by the one
	// that does.
	ownB.mu.Lock()
	ownB.reject = 3
	ownB.mu.Unlock()
	requireOK(t)(push(t, a, "slot=partition&goal=canary&scope=m", []byte("z"), "generation 3"))
	s := waitForOwnSlot(t, a, "3 is taken back", func(s PolicySlot) bool { return s.Candidate == nil && len(s.RolledBack) == 1 })
	if e := s.RolledBack[0]; e.Reason != "control/b: it trapped" || e.By != "a" || !stable(2)(s) {
		t.Errorf("%+v", s)
	}

	// a stops: b plans, and does not wait for a.
	a.stop()
	for _, w := range ownA.wanted {
		if w.GetKind() != "partition" {
			t.Errorf("configuration of slot %s, which it does not have", w.GetKind())
		}
	}
	waitForOwnSlot(t, b, "a is not listed", func(s PolicySlot) bool { return node(s, "control/a").Node == "" })
	requireOK(t)(push(t, b, "slot=partition&goal=active&scope=m", []byte("4"), "generation 4"))
	waitForOwnSlot(t, b, "4 is stable", stable(4))
}

// FuzzParsePlaneNote checks that any note is one of a control plane, within bounds, or an error.
func FuzzParsePlaneNote(f *testing.F) {
	f.Add([]byte(`{"name":"a","sequence":7,"slots":{"slots":[{"kind":"guard","active":"3","modules":[{"generation":"3","phase":"active","reason":"x"}]}]}}`))
	f.Add([]byte(`{"name":""}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		n, err := parsePlaneNote(text)
		if err != nil {
			return
		}
		if n.Name == "" || len(n.Name) > policyslots.MaxName || len(n.statuses) > policyslots.MaxStatuses {
			t.Errorf("%+v", n)
		}
		for _, s := range n.statuses {
			if !s.Kind.Known() || len(s.Modules) > policyslots.MaxModules || len(s.Refused) > policyslots.MaxReason {
				t.Errorf("%+v", s)
			}
		}
	})
}
