package store_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/xds/internal/storetest"
	"github.com/cascadeinfer/cascade/xds/store"
)

// TestNotes checks that notes are replaced, removed and read whole.
func TestNotes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "planes")
	folder, err := store.NewNoteFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	storetest.RunNotes(t, folder)
	// Old notes are removed, other files are left alone.
	past := time.Now().Add(-2 * time.Hour)
	for _, name := range []string{"c.note", "c.note.tmp17", "mine.txt", "c.note.tmpl"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, past, past); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := folder.All(); err != nil || len(all) != 2 {
		t.Errorf("%d notes, %v", len(all), err)
	}
	if got := names(t, dir); !slices.Equal(got, []string{"..%2Fa.note", "b.note", "c.note.tmpl", "mine.txt"}) {
		t.Errorf("files left: %q", got)
	}
	// A directory that cannot be read is one error.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if all, err := folder.All(); len(all) > 0 || err == nil || strings.Count(err.Error(), dir) != 1 {
		t.Errorf("of a removed directory: %d notes, %v", len(all), err)
	}
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// TestStaleTempFiles checks that the temporary files of a crashed writer are removed
// after an hour, at the next start.
func TestStaleTempFiles(t *testing.T) {
	dir := t.TempDir()
	sum := strings.Repeat("ab", 32)
	left := func(age time.Duration, all ...string) {
		t.Helper()
		for _, name := range all {
			path := filepath.Join(dir, name)
			at := time.Now().Add(-age)
			if err := os.WriteFile(path, bytes.Repeat([]byte("x"), 10), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, at, at); err != nil {
				t.Fatal(err)
			}
		}
	}
	left(2*time.Hour, sum+".wasm.tmp1", "plan.json.tmp22", "other.json.tmp3", "x.wasm.tmp4", sum+".wasm.tmpx", sum+".wasm.tmp")
	left(0, sum+".wasm.tmp5", "plan.json.tmp6")
	if _, err := store.NewFile(filepath.Join(dir, "plan.json")); err != nil {
		t.Fatal(err)
	}
	folder, err := store.NewModuleFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := folder.Sweep(nil, time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	want := []string{sum + ".wasm.tmp", sum + ".wasm.tmp5", sum + ".wasm.tmpx", "other.json.tmp3", "plan.json.tmp6", "x.wasm.tmp4"}
	if got := names(t, dir); !slices.Equal(got, want) {
		t.Errorf("files left: %q", got)
	}
}
