package storetest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/store"
)

// operation is one that a fault interrupts, on a store that has Object(1), counters "one" and a module.
type operation struct {
	do func(t *testing.T, s *store.Store, v store.Version) error
	// check is called with another control plane's store, after do returned err.
	check func(t *testing.T, s *store.Store, err error)
}

// theModule is put by testAnyCall, and put again by the operation.
var theModule = bytes.Repeat([]byte("module "), 30_000)

func stored(t *testing.T, s *store.Store, epochs ...policies.Epoch) {
	t.Helper()
	u := Read(t, s)
	for _, e := range epochs {
		if u.Err == nil && cmp.Equal(u.Object, Object(e), cmpopts.EquateEmpty()) {
			return
		}
	}
	t.Errorf("stored is epoch %d, %v, want whole objects of one of %v", u.Object.Epoch, u.Err, epochs)
}

// operations returns what testAnyCall interrupts.
func operations() map[string]operation {
	return map[string]operation{
		"swap": {
			func(t *testing.T, s *store.Store, v store.Version) error {
				_, err := s.CompareAndSwap(t.Context(), v, Object(2))
				return err
			},
			func(t *testing.T, s *store.Store, err error) {
				switch {
				case err == nil:
					stored(t, s, 2)
				case errors.Is(err, store.ErrConflict):
					stored(t, s, 7)
				default:
					stored(t, s, 1, 2)
				}
			},
		},
		"module": {
			func(t *testing.T, s *store.Store, _ store.Version) error {
				return s.PutModule(t.Context(), sha256.Sum256(theModule), theModule)
			},
			func(t *testing.T, s *store.Store, _ error) {
				if got, err := s.Module(t.Context(), lifecycle.Digest(sha256.Sum256(theModule))); err != nil || !bytes.Equal(got, theModule) {
					t.Errorf("a module that was put again: %v", err)
				}
			},
		},
		"counters": {
			func(_ *testing.T, s *store.Store, _ store.Version) error {
				return s.Counters("a").SaveLast(largeCounters)
			},
			func(t *testing.T, s *store.Store, err error) {
				got, e := s.Counters("a").Load()
				if e != nil || !bytes.Equal(got, largeCounters) && (string(got) != "one" || err == nil) {
					t.Errorf("after %v, %d bytes of counters, %v", err, len(got), e)
				}
			},
		},
		"collect": {
			func(t *testing.T, s *store.Store, _ store.Version) error { return s.Collect(t.Context(), time.Now()) },
			func(t *testing.T, s *store.Store, _ error) { stored(t, s, 1, 7) },
		},
		"repair": {
			func(t *testing.T, s *store.Store, _ store.Version) error {
				_, err := s.Repair(t.Context(), time.Now(), Object(2))
				return err
			},
			func(t *testing.T, s *store.Store, _ error) { stored(t, s, 1, 7) },
		},
	}
}

// largeCounters are not compressible, and take several pieces where blobs are small.
var largeCounters = Noise(150_000)

// testAnyCall interrupts every operation at each of its calls: the call fails, its answer is lost, or another control
// plane writes before it. What was stored before or what the operation stores can be read then, whole; the next
// operation succeeds, and nothing is left over of the one that was interrupted.
func testAnyCall(t *testing.T, create func(t *testing.T) func() store.Backend) {
	for name, op := range operations() {
		for _, fault := range []string{"fails", "loses its answer", "comes after another writer"} {
			for n := 0; interrupt(t, create(t), op, fault, n, fmt.Sprintf("%s: call %d %s", name, n, fault)); n++ {
			}
		}
	}
}

// interrupt runs an operation with a fault at call n, and reports whether there was such a call.
func interrupt(t *testing.T, open func() store.Backend, op operation, fault string, n int, what string) (reached bool) {
	t.Helper()
	b := &Faulty{Backend: open()}
	s, other := store.New(b), store.New(open())
	v := mustSwap(t, s, "", Object(1))
	single := count(t, b, store.Parts)
	testkit.NoError(t, s.PutModule(t.Context(), sha256.Sum256(theModule), theModule))
	testkit.NoError(t, s.Counters("a").SaveLast([]byte("one")))
	calls := 0
	isIt := func(string) bool { calls++; return calls == n+1 }
	switch fault {
	case "fails":
		b.Fail(isIt)
	case "loses its answer":
		b.Lose(isIt)
	default:
		b.Before(func(call string) {
			if isIt(call) {
				mustSwap(t, other, Read(t, other).Version, Object(7))
				testkit.NoError(t, other.Collect(t.Context(), time.Now()))
			}
		})
	}
	err := op.do(t, s, v)
	b.Fail(nil)
	b.Lose(nil)
	b.Before(nil)
	op.check(t, store.New(open()), err)
	for _, again := range []*store.Store{s, other} { // each leads for a while
		for range 3 {
			mustSwap(t, again, Read(t, again).Version, Object(3))
			testkit.NoError(t, again.Collect(t.Context(), time.Now()))
		}
	}
	testkit.NoError(t, s.Counters("a").SaveLast([]byte("two")))
	if n := count(t, b, store.Parts); n != single {
		t.Errorf("%d parts are left, want %d", n, single)
	}
	if n := count(t, b, store.Counters); n != 1 {
		t.Errorf("%d blobs of counters are left", n)
	}
	if t.Failed() {
		t.Fatal(what)
	}
	return calls > n
}
