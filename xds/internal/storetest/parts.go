package storetest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Read returns what is stored.
func Read(t *testing.T, s store.Plans) store.Update {
	t.Helper()
	w := startWatch(t, s)
	defer w.stop()
	return w.next()
}

// set replaces the root as an operator would.
func set(t *testing.T, b store.Backend, data string) {
	t.Helper()
	root, err := b.ReadRoot(t.Context())
	testkit.NoError(t, err)
	_, err = b.SwapRoot(t.Context(), root.Version, []byte(data))
	testkit.NoError(t, err)
}

// testUnreadable damages the root, and restores it: a watch reports the error and keeps the last object, and no write
// replaces what cannot be read.
func testUnreadable(t *testing.T, open func() store.Backend) {
	b := open()
	s := store.New(open())
	v := mustSwap(t, s, "", Object(1))
	w := startWatch(t, s)
	requireEqual(t, w.waitForVersion(v).Object, Object(1))
	good := string(testkit.Must(b.ReadRoot(t.Context())).Data)
	damages := map[string]string{"doubled": good + good, "older": `{"format":1,"revision":7}`, "newer": strings.Replace(good, `"format": 2`, `"format": 99`, 1)}
	for i, line := range strings.SplitAfter(good, "\n") {
		if i%7 == 0 {
			damages[fmt.Sprint("cut at line ", i)] = good[:strings.Index(good, line)+len(line)]
		}
	}
	for name, data := range damages {
		if data == good {
			continue
		}
		set(t, b, data)
		u := w.next()
		for u.Err == nil {
			u = w.next()
		}
		if u.Version != v || !cmp.Equal(u.Object.Plans, Object(1).Plans) {
			t.Fatalf("%s: version %q with the error, want the last readable one, %q", name, u.Version, v)
		}
		if isFormat := errors.Is(u.Err, store.ErrFormat); isFormat != (name == "newer" || name == "older") || !strings.Contains(u.Err.Error(), b.String()) ||
			isFormat && !strings.Contains(u.Err.Error(), "start a version that reads it") {
			t.Errorf("%s: %v", name, u.Err)
		}
		if _, err := s.CompareAndSwap(t.Context(), v, Object(2)); err == nil || errors.Is(err, store.ErrConflict) {
			t.Fatalf("%s: swap over an unreadable object: %v", name, err)
		}
		set(t, b, good)
		for u = w.next(); u.Err != nil; {
			u = w.next()
		}
		requireEqual(t, u.Object, Object(1))
		v = u.Version
	}
	mustSwap(t, s, v, Object(2))
}

// testLarge stores an object that does not fit into a root, renews its lease, and refuses one beyond the limit.
func testLarge(t *testing.T, open func() store.Backend) {
	b := open()
	s, o := store.New(b), LargeDocuments("m")
	mustSwap(t, s, "", o)
	requireEqual(t, Read(t, store.New(open())).Object, o)
	before := count(t, b, store.Parts)
	s, o.Weights = store.New(open()), nil // also another process leaves the stored plan alone
	u := Read(t, s)
	v := mustSwap(t, s, u.Version, o)
	o.Lease = store.Lease{Holder: "a", Expires: time.Now().UTC()}
	v = mustSwap(t, s, v, o)
	if after := count(t, b, store.Parts); after != before {
		t.Errorf("%d parts, before a renewal %d", after, before)
	}
	requireEqual(t, Read(t, s).Object, o)
	if _, err := s.CompareAndSwap(t.Context(), v, LargeObject(300_000)); err == nil || !strings.Contains(err.Error(), "at most 8388608 are allowed") {
		t.Errorf("stored an object beyond the limit: %v", err)
	}
}

// testCollected checks which blobs are removed: parts of former objects and of writers that lost, modules that were
// not named for an hour, and no others; and that the error says what cannot be removed.
func testCollected(t *testing.T, open func() store.Backend) {
	b, now := &Faulty{Backend: open()}, time.Now()
	s, other := store.New(b), store.New(open())
	code, kept := []byte("unused"), []byte("kept")
	unused, named := lifecycle.Digest(sha256.Sum256(code)), lifecycle.Digest(sha256.Sum256(kept))
	o := LargeDocuments("m")
	o.Slots = []policyslots.Slot{{Kind: "place", Floor: 1, Stable: &policyslots.Module{Generation: 1, Name: "m", SHA256: named, Size: len(kept), Signature: []byte("s"), At: now.UTC().Round(0)}}}
	weights := o.Weights
	o.Weights = nil // the state is in the root then
	v := mustSwap(t, s, "", o)
	single := count(t, b, store.Parts)
	o.Weights = weights
	for range 2 { // one copy is enough
		testkit.NoError(t, s.PutModule(t.Context(), named, kept))
	}
	testkit.NoError(t, s.PutModule(t.Context(), unused, code))
	collect := func(after time.Duration) error {
		t.Helper()
		v = mustSwap(t, s, v, o)
		now = now.Add(after)
		return s.Collect(t.Context(), now)
	}
	for range 2 { // of writers that lose, and of former objects
		if _, err := other.CompareAndSwap(t.Context(), "", LargeDocuments("x")); !errors.Is(err, store.ErrConflict) {
			t.Fatal(err)
		}
		o.Epoch++
		testkit.NoError(t, collect(0))
	}
	if n := count(t, b, store.Modules); n != 3 {
		t.Errorf("%d blobs of modules after a minute, want 3", n)
	}
	b.Fail(func(call string) bool { return strings.HasPrefix(call, "RemoveBlob") })
	if err := collect(store.ModuleGrace); single > 0 && (err == nil || !strings.Contains(err.Error(), "not removed") || !strings.Contains(err.Error(), ErrInjected.Error())) {
		t.Errorf("without the right to remove: %v", err)
	}
	if err := collect(0); err == nil || !strings.Contains(err.Error(), "not removed") {
		t.Errorf("without the right to remove modules: %v", err)
	}
	b.Fail(nil)
	o.Weights = nil
	for range 2 {
		testkit.NoError(t, collect(0))
	}
	if n := count(t, b, store.Parts); n != single {
		t.Errorf("%d parts are left, want those of one object, %d", n, single)
	}
	if n := count(t, b, store.Modules); n != 1 {
		t.Errorf("%d blobs of modules are left, want 1", n)
	}
	if _, err := s.Module(t.Context(), named); err != nil {
		t.Error(err)
	}
	requireEqual(t, Read(t, other).Object, o)
}

// testCollectedMeanwhile collects while a write is between its parts and its root: what the root then names stays,
// also when later writes name it again.
func testCollectedMeanwhile(t *testing.T, open func() store.Backend) {
	b := &Faulty{Backend: open()}
	s := store.New(b)
	v := mustSwap(t, s, "", Object(1))
	b.Before(func(call string) {
		if call == "SwapRoot" {
			b.Before(nil)
			testkit.NoError(t, s.Collect(t.Context(), time.Now()))
		}
	})
	o := Object(2)
	for range 2 { // the second is a renewal
		v = mustSwap(t, s, v, o)
		o.Lease.Expires = o.Lease.Expires.Add(time.Second)
	}
	testkit.NoError(t, s.Collect(t.Context(), time.Now()))
	if u := Read(t, store.New(open())); u.Err != nil || u.Object.Epoch != 2 {
		t.Errorf("epoch %d, %v", u.Object.Epoch, u.Err)
	}
}

// testRemoved removes the parts of the plan by hand: no read succeeds, and the leader stores them again.
func testRemoved(t *testing.T, open func() store.Backend) {
	b := open()
	s := store.New(b)
	o := Object(1)
	v := mustSwap(t, s, "", o)
	names, err := b.ListBlobs(t.Context(), store.Parts)
	testkit.NoError(t, err)
	for _, name := range names {
		testkit.NoError(t, b.RemoveBlob(t.Context(), store.Parts, name))
	}
	if u := Read(t, store.New(open())); len(names) > 0 && !errors.Is(u.Err, store.ErrNoBlob) {
		t.Errorf("without its parts, the plan is read: %v", u.Err)
	}
	testkit.NoError(t, s.Collect(t.Context(), time.Now()))
	mustSwap(t, s, v, o)
	requireEqual(t, Read(t, store.New(open())).Object, o)
}

func testRepair(t *testing.T, open func() store.Backend) {
	b, at := open(), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := store.New(open())
	repair := func(o store.Object, wantKept string) {
		t.Helper()
		if kept, err := s.Repair(t.Context(), at, o); err != nil || kept != wantKept {
			t.Errorf("kept as %q, %v, want %q", kept, err, wantKept)
		}
	}
	repair(Object(1), "")
	if _, err := s.Repair(t.Context(), at, Object(3)); !errors.Is(err, store.ErrConflict) {
		t.Errorf("repaired what can be read: %v", err)
	}
	good := string(testkit.Must(b.ReadRoot(t.Context())).Data)
	set(t, b, "broken")
	repair(Object(2), "corrupt/20260102t030405z")
	requireEqual(t, Read(t, s).Object, Object(2))
	if data, err := b.ReadBlob(t.Context(), store.Corrupt, "20260102t030405z"); err != nil || string(data) != "broken" {
		t.Errorf("%q, %v", data, err)
	}
	// Where only the state cannot be read, drains and pins stay.
	i := strings.Index(good, `"state": {`)
	set(t, b, good[:i]+`"state": {"inline": {"weights": 7}}}`)
	if u := Read(t, s); u.Err == nil || !strings.Contains(u.Err.Error(), "state:") {
		t.Fatalf("a broken state: %v", u.Err)
	}
	repair(Object(3), "")
	if got := Read(t, s).Object; got.Epoch != 1 || len(got.Drained) != 2 || got.Weights != nil {
		t.Errorf("epoch %d, drained %q, weights %v", got.Epoch, got.Drained, got.Weights)
	}
	set(t, b, `{"format": 99}`)
	if _, err := s.Repair(t.Context(), at, Object(3)); !errors.Is(err, store.ErrFormat) {
		t.Errorf("repaired what another version wrote: %v", err)
	}
}
