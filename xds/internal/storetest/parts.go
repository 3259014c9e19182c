package storetest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/xds/store"
)

// RunModules checks that modules can be read back, that wrong bytes are refused, and that
// only old modules that are not kept are swept. m must be empty; the module of the text
// "one" remains.
func RunModules(t *testing.T, m store.Modules) {
	one, two := []byte("one"), []byte("two")
	a, b := sha256.Sum256(one), sha256.Sum256(two)
	if _, err := m.Get(a); !errors.Is(err, store.ErrNoModule) {
		t.Fatal(err)
	}
	if m.Put(a, two) == nil || m.Put(a, nil) == nil {
		t.Error("wrong bytes were stored")
	}
	for range 2 {
		if err := errors.Join(m.Put(a, one), m.Put(b, two)); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := m.Get(a); err != nil || !bytes.Equal(got, one) {
		t.Fatal(got, err)
	}
	if err := m.Sweep(nil, time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Get(b); err != nil {
		t.Fatal(err)
	}
	if err := m.Sweep(map[lifecycle.Digest]bool{a: true}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Get(a); err != nil {
		t.Error(err)
	}
	if _, err := m.Get(b); !errors.Is(err, store.ErrNoModule) {
		t.Error(err)
	}
}

// RunNotes checks that notes are replaced, removed and read whole. n must be empty.
func RunNotes(t *testing.T, n store.Notes) {
	has := func(want ...string) {
		t.Helper()
		var got []string
		all, err := n.All()
		for _, text := range all {
			got = append(got, string(text))
		}
		slices.Sort(got)
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("%q, %v, want %q", got, err, want)
		}
	}
	put := func(name, text string) {
		t.Helper()
		if err := n.Put(name, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	long := strings.Repeat("a/ü", 80)
	has()
	put("../a", "1")
	put("b:18000", "2")
	put(long, "3")
	put("../a", "4")
	has("2", "3", "4")
	put("b:18000", "")
	put("b:18000", "")
	put(long, "")
	has("4")
	if n.Put("", []byte("x")) == nil || n.Put("b", make([]byte, store.MaxNote+1)) == nil {
		t.Error("a note without a name, or one that is too long")
	}
	put("b", string(make([]byte, store.MaxNote)))
	has(string(make([]byte, store.MaxNote)), "4")
}

// RunLargeModule checks that a module of so many random bytes comes back unchanged. It returns the module and its
// digest.
func RunLargeModule(t *testing.T, m store.Modules, size int) (large []byte, sum [sha256.Size]byte) {
	large = make([]byte, size)
	for i := range large {
		large[i] = byte(rand.Uint32())
	}
	sum = sha256.Sum256(large)
	testkit.NoError(t, m.Put(sum, large))
	got, err := m.Get(sum)
	testkit.NoError(t, err)
	if !slices.Equal(got, large) {
		t.Errorf("a module of %d bytes comes back changed", size)
	}
	return large, sum
}
