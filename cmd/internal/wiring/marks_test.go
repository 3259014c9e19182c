package wiring

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/atomicfile"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestRemoveStaleMarks: what a process that was ended left of a new file is removed when it
// starts again, an hour later.
func TestRemoveStaleMarks(t *testing.T) {
	f := load(t, "state: s\npolicies: {keys: [k.pub]}\n")
	writeFile(t, filepath.Join(f.Dir, "k.pub"), publicKey(t))
	dir := filepath.Join(f.Dir, "s", "marks")
	writeFile(t, filepath.Join(dir, "control-a.json"), "x")
	interrupted := func(name string) string {
		return testkit.Must(atomicfile.WriteTemp(filepath.Join(dir, name), nil, 0o600, (*os.File).Sync))
	}
	stale, kept := interrupted("control-a.json"), []string{interrupted("control-b.json"), filepath.Join(dir, "control-a.json.tmpx"), filepath.Join(dir, "control-a.json")}
	writeFile(t, kept[1], "x")
	old := time.Now().Add(-2 * time.Hour)
	for _, name := range append(kept, stale) {
		testkit.NoError(t, os.Chtimes(name, old, old))
	}
	kept = append(kept, interrupted("control-a.json")) // a moment ago
	if _, err := f.Policies(identity.Control, "a", 0); err != nil {
		t.Fatal(err)
	}
	left := testkit.Must(filepath.Glob(filepath.Join(dir, "*")))
	if slices.Sort(kept); !slices.Equal(left, kept) {
		t.Errorf("left: %q, want %q", left, kept)
	}
}
