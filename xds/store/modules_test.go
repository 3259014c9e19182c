package store_test

import (
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cascadeinfer/cascade/xds/internal/storetest"
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
			storetest.RunModules(t, m)
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
