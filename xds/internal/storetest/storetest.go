// Package storetest checks that a store.Backend, and the store.Store on it, keep their contracts.
// Every implementation runs it.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/store"
)

// timeout bounds every wait.
const timeout = 20 * time.Second

// Run runs the suite. create makes an empty storage and returns a function that opens
// it; two backends opened by it represent two control planes.
func Run(t *testing.T, create func(t *testing.T) (open func() store.Backend)) {
	for name, f := range map[string]func(*testing.T, func() *store.Store){
		"empty": testEmpty, "swap": testSwap, "conflict": testConflict, "watch": testWatch, "race": testRace,
		"cancelled": testCancelled, "not shared": testNotShared, "modules": testModules, "notes": testNotes,
		"counters": testCounters,
	} {
		t.Run(name, func(t *testing.T) {
			open := create(t)
			f(t, func() *store.Store { return store.New(open()) })
		})
	}
	for name, f := range map[string]func(*testing.T, func() store.Backend){
		"backend": testBackend, "unreadable": testUnreadable, "large": testLarge, "collected": testCollected, "removed by hand": testRemoved, "collected meanwhile": testCollectedMeanwhile,
		"repair": testRepair,
	} {
		t.Run(name, func(t *testing.T) { f(t, create(t)) })
	}
	t.Run("any call", func(t *testing.T) { testAnyCall(t, create) })
}

// module returns a generation of a slot.
func module(generation lifecycle.Generation, at time.Time) *policyslots.Module {
	return &policyslots.Module{
		Generation: generation, Name: "m", Version: "1.2", SHA256: lifecycle.Digest{byte(generation), 0xff}, Size: 77,
		Signature: []byte("signed"), Configuration: []byte{0, 1}, Signers: []string{"ops"}, By: "ann", At: at,
	}
}

// Object returns an object with every field set, distinct for every epoch.
func Object(epoch policies.Epoch) store.Object {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(time.Duration(epoch) * time.Second)
	return store.Object{
		Epoch: epoch,
		Plans: []policies.Plan{
			{Model: "org/a", Epoch: epoch, Stages: []policies.Stage{
				{Low: 0, High: 1000 + policies.Tokens(epoch), Replicas: []policies.ReplicaID{"r0", "r1"}},
				{Low: 1000 + policies.Tokens(epoch), High: policies.Unbounded, Replicas: []policies.ReplicaID{"r2"}},
			}},
			policies.OneStagePlan("b", []policies.ReplicaID{"r3"}),
		},
		Reasons: []store.Reason{
			{Model: "org/a", Epoch: epoch, At: at, Text: "gain 12 %"},
			{Model: "b", Epoch: epoch, At: at, Text: "gain too small", Decision: "kept", Gain: 0.05, Predicted: 0.01, Observed: 0.02, By: "cp-1", Times: 7, Until: at.Add(time.Minute)},
		},
		Slots: []policyslots.Slot{
			{Kind: "guard", Floor: 9, Ended: []policyslots.Ended{{Generation: 9, Name: "g", Reason: "trapped", By: "ann", At: at}}},
			{
				Kind: "place", Floor: 4 + lifecycle.Generation(epoch), Stable: module(2, at), Previous: module(1, at),
				Candidate: &policyslots.Trial{Module: *module(4, at), Goal: lifecycle.ToCanary, Permille: 10, Since: at},
			},
		},
		Drained: []policies.ReplicaID{"r2", policies.ReplicaID(fmt.Sprint("q", epoch))},
		Pins: []store.Pin{
			{FormerPlan: store.FormerPlan{Model: "b", Epoch: epoch, Counts: []int{4}}, At: at, By: "ann"},
			{FormerPlan: store.FormerPlan{Model: "org/a", Epoch: epoch, Cuts: []policies.Tokens{7, 9}, Counts: []int{1, 2, 3}}, At: at},
		},
		Holds:       []store.Hold{{Model: "b", Until: at.Add(time.Hour), For: time.Minute}},
		FormerPlans: []store.FormerPlan{{Model: "c", Epoch: 0, Counts: []int{2}}, {Model: "b", Epoch: epoch, Cuts: []policies.Tokens{5}, Counts: []int{1, 1}}},

		Lease:    store.Lease{Holder: "cp-1", Expires: at.Add(3 * time.Second)},
		Weights:  []store.Weight{{Replica: "r0", Weight: 141}},
		Unready:  []policies.ReplicaID{"r1"},
		Stopping: []policies.ReplicaID{"r3"},
		Ratios:   []store.Ratio{{Model: "org/a", Milli: 3900}},
		Counts:   []store.RequestCount{{Model: "org/a", Requests: 12345}},
	}
}

// watcher receives the updates of one watch.
type watcher struct {
	t      *testing.T
	ch     <-chan store.Update
	cancel context.CancelFunc
}

func startWatch(t *testing.T, s store.Plans) *watcher {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &watcher{t: t, ch: s.Watch(ctx), cancel: cancel}
	t.Cleanup(w.stop)
	return w
}

// next returns the next update.
func (w *watcher) next() store.Update {
	w.t.Helper()
	select {
	case u, ok := <-w.ch:
		if !ok {
			w.t.Fatal("the watch ended before its context")
		}
		return u
	case <-time.After(timeout):
		w.t.Fatal("no update")
	}
	return store.Update{}
}

// waitForVersion receives until a version comes.
func (w *watcher) waitForVersion(v store.Version) store.Update {
	w.t.Helper()
	for {
		if u := w.next(); u.Version == v && u.Err == nil {
			return u
		}
	}
}

// stop ends the watch and waits until it has.
func (w *watcher) stop() {
	w.t.Helper()
	w.cancel()
	deadline := time.After(timeout)
	for {
		select {
		case _, ok := <-w.ch:
			if !ok {
				return
			}
		case <-deadline:
			w.t.Fatal("the watch did not end after its context")
		}
	}
}

func mustSwap(t *testing.T, s store.Plans, old store.Version, o store.Object) store.Version {
	t.Helper()
	v, err := s.CompareAndSwap(t.Context(), old, o)
	if err != nil {
		t.Fatal(err)
	}
	if v == "" || v == old {
		t.Fatalf("version %q follows %q", v, old)
	}
	return v
}

func requireEqual(t *testing.T, got, want store.Object) {
	t.Helper()
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Fatalf("object (-want +got):\n%s", d)
	}
}

func testEmpty(t *testing.T, open func() *store.Store) {
	u := startWatch(t, open()).next()
	if u.Version != "" || u.Err != nil {
		t.Fatalf("empty store: version %q, error %v", u.Version, u.Err)
	}
	requireEqual(t, u.Object, store.Object{})
}

func testSwap(t *testing.T, open func() *store.Store) {
	s := open()
	v1 := mustSwap(t, s, "", Object(1))
	u := startWatch(t, open()).next()
	if u.Version != v1 {
		t.Fatalf("version %q, want %q", u.Version, v1)
	}
	requireEqual(t, u.Object, Object(1))
	v2 := mustSwap(t, open(), v1, Object(2))
	v3 := mustSwap(t, s, v2, Object(1)) // the same content again gets a new version
	if v3 == v1 {
		t.Fatal("a version was used twice")
	}
	requireEqual(t, startWatch(t, s).next().Object, Object(1))
	v4 := mustSwap(t, s, v3, store.Object{}) // the zero object is valid
	twice := Object(1)
	twice.Plans[1].Model = twice.Plans[0].Model
	if _, err := s.CompareAndSwap(t.Context(), v4, twice); err == nil || errors.Is(err, store.ErrConflict) {
		t.Fatalf("stored two plans of one model: %v", err)
	}
}

func testConflict(t *testing.T, open func() *store.Store) {
	a, b := open(), open()
	v1 := mustSwap(t, a, "", Object(1))
	for _, old := range []store.Version{"", "nonsense", v1 + "x"} {
		if _, err := b.CompareAndSwap(t.Context(), old, Object(9)); !errors.Is(err, store.ErrConflict) {
			t.Errorf("swap from version %q: %v", old, err)
		}
	}
	v2 := mustSwap(t, b, v1, Object(2))
	if _, err := a.CompareAndSwap(t.Context(), v1, Object(9)); !errors.Is(err, store.ErrConflict) {
		t.Errorf("swap from an old version: %v", err)
	}
	u := startWatch(t, a).next()
	if u.Version != v2 {
		t.Fatalf("version %q, want %q", u.Version, v2)
	}
	requireEqual(t, u.Object, Object(2))
	// A renewal of the lease, which changes nothing else, is a new version, too.
	renewed := Object(2)
	renewed.Lease.Expires = renewed.Lease.Expires.Add(time.Second)
	v3 := mustSwap(t, b, v2, renewed)
	taken := Object(2)
	taken.Lease.Holder = "cp-2"
	if _, err := a.CompareAndSwap(t.Context(), v2, taken); !errors.Is(err, store.ErrConflict) {
		t.Errorf("swap from before a renewal: %v", err)
	}
	requireEqual(t, startWatch(t, a).waitForVersion(v3).Object, renewed)
}

func testWatch(t *testing.T, open func() *store.Store) {
	s := open()
	own, other := startWatch(t, s), startWatch(t, open())
	own.next()
	other.next()
	v := store.Version("")
	for e := policies.Epoch(1); e <= 5; e++ {
		v = mustSwap(t, s, v, Object(e))
		requireEqual(t, own.waitForVersion(v).Object, Object(e))
		requireEqual(t, other.waitForVersion(v).Object, Object(e))
	}
	// Changes that are not received in between end with the last one.
	for e := policies.Epoch(6); e <= 20; e++ {
		v = mustSwap(t, s, v, Object(e))
	}
	requireEqual(t, own.waitForVersion(v).Object, Object(20))
	requireEqual(t, other.waitForVersion(v).Object, Object(20))
}

// testRace increments the epoch from several writers: every successful swap must have
// been exclusive.
func testRace(t *testing.T, open func() *store.Store) {
	const writers, rounds = 4, 10
	mustSwap(t, open(), "", Object(0))
	var wg sync.WaitGroup
	errs := make(chan error, writers)
	for range writers {
		wg.Go(func() {
			s := open()
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			errs <- func() error {
				for done := 0; done < rounds; {
					watchCtx, stop := context.WithCancel(ctx)
					ch := s.Watch(watchCtx)
					u := <-ch
					stop()
					for range ch {
					}
					if u.Err != nil {
						return u.Err
					}
					_, err := s.CompareAndSwap(ctx, u.Version, Object(u.Object.Epoch+1))
					if err == nil {
						done++
					} else if !errors.Is(err, store.ErrConflict) {
						return err
					}
				}
				return nil
			}()
		})
	}
	wg.Wait()
	for range writers {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	if got := startWatch(t, open()).next().Object.Epoch; got != writers*rounds {
		t.Fatalf("%d of %d increments were stored", got, writers*rounds)
	}
}

func testCancelled(t *testing.T, open func() *store.Store) {
	s := open()
	w := startWatch(t, s)
	w.stop() // before any update was received
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.CompareAndSwap(ctx, "nonsense", Object(1)); err == nil {
		t.Fatal("swap from an invalid version under an ended context succeeded")
	}
}

func testNotShared(t *testing.T, open func() *store.Store) {
	s := open()
	given := Object(1)
	mustSwap(t, s, "", given)
	given.Plans[0].Stages[0].Replicas[0] = "changed"
	given.Reasons[0].Text = "changed"
	given.Drained[0] = "changed"
	given.Pins[1].Cuts[0], given.FormerPlans[1].Counts[0], given.Weights[0].Weight = 8, 9, 10
	given.Unready[0], given.Stopping[0], given.Ratios[0].Milli, given.Counts[0].Requests = "changed", "changed", 1, 1
	got := startWatch(t, s).next().Object
	requireEqual(t, got, Object(1))
	got.Plans[0].Stages[1].Replicas[0] = "changed"
	got.Plans[1].Model = "changed"
	got.Drained[0] = "changed too"
	got.Pins[1].Cuts[0], got.FormerPlans[1].Cuts[0], got.Holds[0].For = 8, 9, 10
	requireEqual(t, startWatch(t, s).next().Object, Object(1))
}
