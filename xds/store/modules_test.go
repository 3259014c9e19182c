package store_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/store"
)

// TestModules checks that modules can be read back, that wrong bytes are refused, and
// that only old modules that no object names are swept.
func TestModules(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "modules")
	folder, err := store.NewModuleFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]store.Modules{"memory": new(store.MemoryModules), "folder": folder} {
		t.Run(name, func(t *testing.T) {
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
		})
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Fatal(entries, err)
	}
	file := filepath.Join(dir, entries[0].Name())
	if info, _ := os.Stat(file); info.Mode() != 0o600 {
		t.Error(info.Mode())
	}
	if err := os.WriteFile(file, []byte("edited"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := folder.Get(sha256.Sum256([]byte("one"))); err == nil || errors.Is(err, store.ErrNoModule) {
		t.Error("an edited file was returned as a module:", err)
	}
	if err := folder.Put(sha256.Sum256([]byte("one")), []byte("one")); err != nil {
		t.Error("an edited file was not repaired by Put:", err)
	}
	if _, err := store.NewModuleFolder(filepath.Join(dir, "no", "parent")); err == nil {
		t.Error("created a folder without a parent")
	}
}
