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

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Noise returns bytes that cannot be compressed.
func Noise(size int) []byte {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	return data
}

// testBackend checks what the contract of store.Backend says of blobs.
func testBackend(t *testing.T, open func() store.Backend) {
	a, b := open(), open()
	read := func(folder string) string {
		t.Helper()
		data, err := b.ReadBlob(t.Context(), folder, "x-1.0")
		if err != nil && !errors.Is(err, store.ErrNoBlob) {
			t.Fatal(err)
		}
		return string(data)
	}
	for _, folder := range store.Folders {
		testkit.NoError(t, a.CreateBlob(t.Context(), folder, "x-1.0", []byte("one")))
		if err := b.CreateBlob(t.Context(), folder, "x-1.0", []byte("two")); !errors.Is(err, store.ErrExists) {
			t.Errorf("%s: created twice: %v", folder, err)
		}
		if got := read(folder); got != "one" {
			t.Errorf("%s: %q", folder, got)
		}
		all := append([]byte{0, 0xff}, bytes.Repeat([]byte{7}, b.Limits().Blob-2)...)
		testkit.NoError(t, a.CreateBlob(t.Context(), folder, "largest", all))
		if got, err := b.ReadBlob(t.Context(), folder, "largest"); err != nil || !bytes.Equal(got, all) {
			t.Errorf("%s: the largest blob comes back as %d bytes, %v", folder, len(got), err)
		}
		names, err := b.ListBlobs(t.Context(), folder)
		if slices.Sort(names); err != nil || !slices.Equal(names, []string{"largest", "x-1.0"}) {
			t.Errorf("%s: %q, %v", folder, names, err)
		}
		for range 2 {
			testkit.NoError(t, b.RemoveBlob(t.Context(), folder, "x-1.0"))
			testkit.NoError(t, b.RemoveBlob(t.Context(), folder, "largest"))
		}
		if names, err := a.ListBlobs(t.Context(), folder); err != nil || len(names) > 0 || read(folder) != "" {
			t.Errorf("%s: %q after all were removed, %v", folder, names, err)
		}
	}
	for _, text := range []string{"first", "second"} {
		testkit.NoError(t, a.ReplaceBlob(t.Context(), store.Notes, "x-1.0", []byte(text)))
		if got := read(store.Notes); got != text {
			t.Errorf("replaced by %q: %q", text, got)
		}
	}
}

// count returns how many blobs a folder has.
func count(t *testing.T, b store.Backend, folder string) int {
	t.Helper()
	names, err := b.ListBlobs(t.Context(), folder)
	testkit.NoError(t, err)
	return len(names)
}

// testModules checks that modules can be read back, and that wrong bytes are refused.
func testModules(t *testing.T, open func() *store.Store) {
	s := open()
	one, large := []byte("one"), Noise(2_000_000)
	a, b := lifecycle.Digest(sha256.Sum256(one)), lifecycle.Digest(sha256.Sum256(large))
	if _, err := s.Module(t.Context(), a); !errors.Is(err, store.ErrNoModule) {
		t.Fatal(err)
	}
	for name, code := range map[string][]byte{"another": large, "empty": nil, "too long": make([]byte, policyslots.MaxModule+1)} {
		if s.PutModule(t.Context(), a, code) == nil {
			t.Errorf("%s: stored", name)
		}
	}
	for range 2 {
		testkit.NoError(t, s.PutModule(t.Context(), a, one))
		testkit.NoError(t, s.PutModule(t.Context(), b, large))
	}
	for sum, want := range map[lifecycle.Digest][]byte{a: one, b: large} {
		if got, err := open().Module(t.Context(), sum); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes come back as %d, %v", len(want), len(got), err)
		}
	}
}

// testNotes checks that notes are replaced, removed and read whole, and end after an hour.
func testNotes(t *testing.T, open func() *store.Store) {
	s, now := open(), time.Now()
	has := func(want ...string) {
		t.Helper()
		var got []string
		all, err := s.AllNotes(t.Context(), now)
		for _, text := range all {
			got = append(got, string(text))
		}
		slices.Sort(got)
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("%.20q, %v, want %.20q", got, err, want)
		}
	}
	put := func(name, text string) {
		t.Helper()
		testkit.NoError(t, open().PutNote(t.Context(), name, []byte(text)))
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
	if s.PutNote(t.Context(), "", []byte("x")) == nil || s.PutNote(t.Context(), "b", make([]byte, store.MaxNote+1)) == nil {
		t.Error("a note without a name, or one that is too long")
	}
	put("b", string(make([]byte, store.MaxNote)))
	has(string(make([]byte, store.MaxNote)), "4")
	now = now.Add(store.NoteLifetime / 2)
	put("b", "5")
	has("4", "5")
	now = now.Add(store.NoteLifetime / 2)
	has("5")
	if all, err := open().AllNotes(t.Context(), now); err != nil || len(all) != 1 {
		t.Errorf("%d notes are left, %v", len(all), err)
	}
}

func testCounters(t *testing.T, open func() *store.Store) {
	s := open()
	for _, size := range []int{0, 10, 2_000_000, 900_000} {
		data := Noise(size)
		testkit.NoError(t, open().Counters("a/b").Save(data)) // a new process: nothing is skipped
		if got, err := s.Counters("a/b").Load(); err != nil || !bytes.Equal(got, data) {
			t.Errorf("counters of %d bytes come back as %d, %v", len(data), len(got), err)
		}
	}
	if got, err := s.Counters("b").Load(); err != nil || got != nil {
		t.Errorf("counters that were never saved: %q, %v", got, err)
	}
	// The rate of saves does not hold for the last one of a process.
	k := s.Counters("b")
	for text, save := range map[string]func([]byte) error{"skipped": k.Save, "last": k.SaveLast} {
		testkit.NoError(t, k.SaveLast(Noise(500_000)))
		testkit.NoError(t, save([]byte(text)))
		if got, err := s.Counters("b").Load(); err != nil || (string(got) == text) != (text == "last") {
			t.Errorf("%s: %d bytes, %v", text, len(got), err)
		}
	}
}
