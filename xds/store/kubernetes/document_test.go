package kubernetes_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/xds/internal/storetest"
	"github.com/cascadeinfer/cascade/xds/store"
	"github.com/cascadeinfer/cascade/xds/store/kubernetes"
)

// testRenewal checks that a write that changes only the lease stores no plan, and that the
// Lease says who leads.
func testRenewal(t *testing.T, a api) {
	c := a.open(t, newName())
	s := c.Plan()
	o := storetest.Object(1)
	v, err := s.CompareAndSwap(t.Context(), "", o)
	testkit.NoError(t, err)
	expect := func(plans int, holder string, changes int32) {
		t.Helper()
		stored, err := c.ConfigMaps(t.Context(), "plan")
		testkit.NoError(t, err)
		lease, err := c.Lease(t.Context())
		testkit.NoError(t, err)
		if len(stored) != plans || *lease.Spec.HolderIdentity != holder || *lease.Spec.LeaseTransitions != changes {
			t.Errorf("%d plans, held by %s after %d changes, want %d, %s and %d", len(stored), *lease.Spec.HolderIdentity, *lease.Spec.LeaseTransitions, plans, holder, changes)
		}
	}
	for range 3 {
		o.Lease.Expires = o.Lease.Expires.Add(time.Second)
		v, err = s.CompareAndSwap(t.Context(), v, o)
		testkit.NoError(t, err)
	}
	expect(1, "cp-1", 0)
	// Also after another process has read it.
	other := a.open(t, c.Name()).Plan()
	u := <-storetest.Follow(t, other).Updates
	o.Lease.Holder = "cp-2"
	v, err = other.CompareAndSwap(t.Context(), u.Version, o)
	testkit.NoError(t, err)
	expect(1, "cp-2", 1)
	o.Drained = nil
	_, err = other.CompareAndSwap(t.Context(), v, o)
	testkit.NoError(t, err)
	expect(2, "cp-2", 1)
}

// documents returns the names of the ConfigMaps of plans and states.
func documents(t *testing.T, c *kubernetes.Client) []string {
	t.Helper()
	plans, err := c.ConfigMaps(t.Context(), "plan")
	testkit.NoError(t, err)
	states, err := c.ConfigMaps(t.Context(), "state")
	testkit.NoError(t, err)
	return append(plans, states...)
}

// testLarge stores objects that do not fit into a ConfigMap, and checks that the parts of the
// former ones are removed.
func testLarge(t *testing.T, a api) {
	c := a.open(t, newName())
	s := c.Plan()
	v := store.Version("")
	var first []string
	var g kubernetes.Collector
	for i := range 2 {
		o := storetest.LargeDocuments(fmt.Sprint("m", i))
		var err error
		v, err = s.CompareAndSwap(t.Context(), v, o)
		testkit.NoError(t, err)
		got, err := a.open(t, c.Name()).Plan().Read(t.Context())
		testkit.NoError(t, err)
		if !reflect.DeepEqual(got, o) {
			t.Fatal("a large object comes back changed")
		}
		if i == 0 {
			first = documents(t, c)
		}
	}
	before := documents(t, c)
	if len(before) != 2*len(first) || len(first) < 3 {
		t.Fatalf("two large objects are stored in %q, and one in %q", before, first)
	}
	now := time.Now()
	testkit.NoError(t, s.Collect(t.Context(), &g, now))
	testkit.NoError(t, s.Collect(t.Context(), &g, now.Add(kubernetes.CollectInterval-1)))
	if left := documents(t, c); len(left) != len(before) {
		t.Errorf("%d of %d are left although nothing was written since", len(left), len(before))
	}
	renewed := storetest.LargeDocuments("m1")
	renewed.Lease = store.Lease{Holder: "a", Expires: now}
	_, err := s.CompareAndSwap(t.Context(), v, renewed)
	testkit.NoError(t, err)
	testkit.NoError(t, s.Collect(t.Context(), &g, now.Add(1)))
	left := documents(t, c)
	if slices.ContainsFunc(left, func(name string) bool { return slices.Contains(first, name) }) {
		t.Errorf("of %q, which nothing names, there are %q left", first, left)
	}
	if _, err := a.open(t, c.Name()).Plan().Read(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := s.CompareAndSwap(t.Context(), v, storetest.LargeObject(200_000)); err == nil || !strings.Contains(err.Error(), "at most 8388608 are allowed") {
		t.Errorf("stored an object beyond the limit: %v", err)
	}
}

// testCollected collects between the two halves of a write of another control plane, which then
// either is refused, or has stored what can be read.
func testCollected(t *testing.T, a api) {
	for _, overtaken := range []bool{false, true} {
		c := a.open(t, newName())
		s, slow := c.Plan(), a.open(t, c.Name()).Plan()
		v, err := s.CompareAndSwap(t.Context(), "", storetest.Object(1))
		testkit.NoError(t, err)
		slow.BeforeWrite(func() {
			var g kubernetes.Collector
			now := time.Now()
			testkit.NoError(t, s.Collect(t.Context(), &g, now))
			if overtaken {
				_, err := s.CompareAndSwap(t.Context(), v, storetest.Object(2))
				testkit.NoError(t, err)
			}
			testkit.NoError(t, s.Collect(t.Context(), &g, now.Add(1)))
		})
		_, err = slow.CompareAndSwap(t.Context(), v, storetest.Object(3))
		if overtaken != errors.Is(err, store.ErrConflict) || !overtaken && err != nil {
			t.Errorf("overtaken %v: %v", overtaken, err)
		}
		got, err := a.open(t, c.Name()).Plan().Read(t.Context())
		if want := map[bool]policies.Epoch{false: 3, true: 2}[overtaken]; err != nil || got.Epoch != want {
			t.Errorf("overtaken %v: stored is epoch %d, %v, want %d", overtaken, got.Epoch, err, want)
		}
		// When overtaken, the plan of the slow writer was removed.
		if left := documents(t, c); len(left) != 2 {
			t.Errorf("overtaken %v: %q are left, want two plans", overtaken, left)
		}
	}
}

// testRemoved removes a plan's ConfigMap: the control plane that writes has it still, and stores
// it again.
func testRemoved(t *testing.T, a api) {
	c := a.open(t, newName())
	s := c.Plan()
	o := storetest.Object(1)
	v, err := s.CompareAndSwap(t.Context(), "", o)
	testkit.NoError(t, err)
	for _, name := range documents(t, c) {
		testkit.NoError(t, c.DeleteConfigMap(t.Context(), name))
	}
	fresh := a.open(t, c.Name()).Plan()
	if _, err := fresh.Read(t.Context()); err == nil || errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), c.Name()+"-plan-") {
		t.Errorf("a plan without its ConfigMap: %v", err)
	}
	testkit.NoError(t, s.Collect(t.Context(), &kubernetes.Collector{}, time.Now()))
	_, err = s.CompareAndSwap(t.Context(), v, o)
	testkit.NoError(t, err)
	if got, err := fresh.Read(t.Context()); err != nil || got.Epoch != 1 {
		t.Errorf("after the next write: epoch %d, %v", got.Epoch, err)
	}
}

func testSetAside(t *testing.T, a api) {
	c := a.open(t, newName())
	s := c.Plan()
	if name, err := s.SetAside(t.Context(), time.Now()); name != "" || err != nil {
		t.Errorf("nothing is stored: %q, %v", name, err)
	}
	_, err := s.CompareAndSwap(t.Context(), "", storetest.Object(1))
	testkit.NoError(t, err)
	damaged := ""
	testkit.NoError(t, c.EditLease(t.Context(), func(all map[string]string) {
		at := strings.Index(all["cascade/plan"], `"sha256":"`) + len(`"sha256":"`)
		damaged = all["cascade/plan"][:at] + strings.Repeat("0", 64) + all["cascade/plan"][at+64:]
		all["cascade/plan"] = damaged
	}))
	if _, err := s.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "another hash") {
		t.Errorf("a plan with another hash: %v", err)
	}
	name, err := s.SetAside(t.Context(), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	testkit.NoError(t, err)
	lease, err := c.Lease(t.Context())
	testkit.NoError(t, err)
	if name != "cascade/corrupt-20260102T030405Z" || lease.Annotations[name] != damaged {
		t.Errorf("%s: %v", name, lease.Annotations)
	}
	kept := documents(t, c)
	v, err := s.CompareAndSwap(t.Context(), "", storetest.Object(2))
	testkit.NoError(t, err)
	var g kubernetes.Collector
	testkit.NoError(t, s.Collect(t.Context(), &g, time.Now()))
	_, err = s.CompareAndSwap(t.Context(), v, storetest.Object(2))
	testkit.NoError(t, err)
	testkit.NoError(t, s.Collect(t.Context(), &g, time.Now()))
	if left := documents(t, c); len(kept) != 1 || !slices.Contains(left, kept[0]) {
		t.Errorf("of %q, which were set aside, there are %q left", kept, left)
	}
	testkit.NoError(t, c.EditLease(t.Context(), func(all map[string]string) { all["cascade/state"] = "broken" }))
	if _, err := s.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "annotation cascade/state") {
		t.Errorf("a broken state: %v", err)
	}
	name, err = s.SetAside(t.Context(), time.Now())
	testkit.NoError(t, err)
	if got, err := s.Read(t.Context()); err != nil || name != "" || got.Epoch != 2 || got.Lease != (store.Lease{}) {
		t.Errorf("after the state was set aside as %q: epoch %d, lease %v, %v", name, got.Epoch, got.Lease, err)
	}
}

// FuzzPointer checks that no annotation makes the store allocate more than its limits.
func FuzzPointer(f *testing.F) {
	f.Add(`{"stored":{"id":"0123456789abcdef","sha256":"` + strings.Repeat("ab", 32) + `","size":1048577,"parts":2}}`)
	f.Add(`{"stored":{"id":"x","sha256":"x","size":1,"parts":1}}`)
	f.Add(`{"format":1}`)
	f.Fuzz(func(t *testing.T, text string) {
		size, parts, err := kubernetes.ParsePointer(text)
		if err == nil && (size < 0 || size > store.MaxSize || parts < 0 || parts > store.MaxSize) {
			t.Errorf("%q: %d bytes in %d parts", text, size, parts)
		}
	})
}
