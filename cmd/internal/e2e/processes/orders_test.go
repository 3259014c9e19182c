package processes

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

// outline is the state on which two control planes must agree.
type outline struct {
	epoch   policies.Epoch
	drained map[policies.ReplicaID][]string
	pinned  bool
}

func outlineOf(s control.Status) outline {
	o := outline{epoch: s.Epoch, drained: map[policies.ReplicaID][]string{}}
	for _, m := range s.Models {
		o.pinned = m.Pinned != nil
		all := slices.Clone(m.Unassigned)
		for _, st := range m.Stages {
			all = append(all, st.Replicas...)
		}
		for _, r := range all {
			o.drained[r.ID] = append([]string(nil), r.Drain...)
		}
	}
	return o
}

// waitForAgreement waits until both control planes show the same state, for which holds returns true.
func waitForAgreement(t *testing.T, f *fleet, what string, holds func(outline) bool) {
	t.Helper()
	var seen [2]outline
	defer func() {
		if t.Failed() {
			t.Logf("%s: a shows %+v, b %+v", what, seen[0], seen[1])
		}
	}()
	waitFor(t, "both show: "+what, func() bool {
		for i, p := range f.planes {
			s, err := p.status()
			if err != nil {
				return false
			}
			seen[i] = outlineOf(s)
		}
		return reflect.DeepEqual(seen[0], seen[1]) && holds(seen[0])
	})
}

// TestOrdersAtEither sends operators' commands to two control planes at the same moment: none is
// lost, and both show the same state in the end.
func TestOrdersAtEither(t *testing.T) {
	t.Parallel()
	f := newFleet(t, setup{replicas: 4, planes: 2})
	a, b := f.planes[0], f.planes[1]
	b.await("follows a", isFollowing("a"))
	plans := f.watchPlans()

	// together sends commands concurrently, each to a control plane, and returns the status codes.
	type order struct {
		at         *plane
		what, name string
	}
	together := func(orders ...order) []int {
		t.Helper()
		codes := make([]int, len(orders))
		var all sync.WaitGroup
		for i, o := range orders {
			all.Go(func() {
				key := "replica"
				if o.what == "plan/pin" || o.what == "plan/unpin" {
					key = "model"
				}
				var err error
				if codes[i], err = o.at.post(fmt.Sprintf("/%s?%s=%s", o.what, key, o.name)); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		return codes
	}
	good := func(codes []int) {
		t.Helper()
		for i, c := range codes {
			if c != http.StatusOK {
				t.Errorf("order %d is answered %d", i, c)
			}
		}
	}
	n := 3
	if everything {
		n = 30
	}
	for range n {
		good(together(order{a, "drain", "r1"}, order{b, "drain", "r2"}, order{b, "plan/pin", llm}))
		waitForAgreement(t, f, "r1 and r2 drained, and a pin", func(o outline) bool {
			return o.pinned && slices.Equal(o.drained["r1"], []string{"operator"}) && slices.Equal(o.drained["r2"], []string{"operator"})
		})
		good(together(order{b, "undrain", "r1"}, order{a, "undrain", "r2"}, order{a, "plan/unpin", llm}))
		waitForAgreement(t, f, "none drained, and no pin", func(o outline) bool {
			return !o.pinned && len(o.drained["r1"])+len(o.drained["r2"]) == 0
		})
		// Contradictory commands: one of them is the last.
		good(together(order{a, "drain", "r3"}, order{b, "undrain", "r3"}, order{a, "plan/unpin", llm}, order{b, "plan/pin", llm}))
		waitForAgreement(t, f, "one of two", func(outline) bool { return true })
		good(together(order{a, "undrain", "r3"}, order{b, "plan/unpin", llm}))
		waitForAgreement(t, f, "none drained", func(o outline) bool { return !o.pinned && len(o.drained["r3"]) == 0 })
		// Concurrent drains: the model's last replica is not drained.
		codes := together(order{a, "drain", "r0"}, order{b, "drain", "r1"}, order{a, "drain", "r2"}, order{b, "drain", "r3"})
		slices.Sort(codes)
		if want := []int{http.StatusOK, http.StatusOK, http.StatusOK, http.StatusConflict}; !slices.Equal(codes, want) {
			t.Errorf("draining all at once is answered %d, want %d", codes, want)
		}
		var orders []order
		for i, r := range f.replicas {
			orders = append(orders, order{f.planes[i%2], "undrain", r.ID})
		}
		good(together(orders...))
		waitForAgreement(t, f, "none drained", func(o outline) bool {
			for _, d := range o.drained {
				if len(d) > 0 {
					return false
				}
			}
			return true
		})
		for _, r := range f.replicas {
			r.awaitServing()
		}
	}
	if got := plans.held(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("the lease was held by %q, want a", got)
	}
}

// TestCommandsAtEither runs an operator's commands at the control plane that does not lead.
func TestCommandsAtEither(t *testing.T) {
	t.Parallel()
	f := newFleet(t, setup{replicas: 2, planes: 2, edit: func(c *config.Fleet) { c.Planner.MinRequests = 20 }})
	a, b := f.planes[0], f.planes[1]
	b.await("follows a", isFollowing("a"))
	b.cascade("drain", "r0", "--wait", "--timeout", patience.String())
	waitForAgreement(t, f, "r0 drained", func(o outline) bool { return len(o.drained["r0"]) > 0 })
	a.cascade("undrain", "r0")
	waitForAgreement(t, f, "r0 back", func(o outline) bool { return len(o.drained["r0"]) == 0 })
	b.cascade("plan", "pin", llm, "--by", "ann")
	waitForAgreement(t, f, "a pin", func(o outline) bool { return o.pinned })
	a.cascade("plan", "unpin", llm, "--by", "ben")
	waitForAgreement(t, f, "no pin", func(o outline) bool { return !o.pinned })
	if x, y := a.cascade("plan", "history"), b.cascade("plan", "history"); x == "" || x != y {
		t.Errorf("history of a:\n%s\nhistory of b:\n%s", x, y)
	}
}
