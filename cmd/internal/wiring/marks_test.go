package wiring

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies/identity"
)

// TestRemoveStaleMarks: what a process that was ended left of a new file is removed when it
// starts again, an hour later.
func TestRemoveStaleMarks(t *testing.T) {
	f := load(t, "state: s\npolicies: {keys: [k.pub]}\n")
	writeFile(t, filepath.Join(f.Dir, "k.pub"), publicKey(t))
	dir := filepath.Join(f.Dir, "s", "marks")
	old := time.Now().Add(-2 * time.Hour)
	for _, name := range []string{".control-a.json-17", ".control-b.json-17", ".control-a.json-x", "control-a.json"} {
		writeFile(t, filepath.Join(dir, name), "x")
		if err := os.Chtimes(filepath.Join(dir, name), old, old); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, filepath.Join(dir, ".control-a.json-18"), "x")
	if _, err := f.Policies(identity.Control, "a", 0); err != nil {
		t.Fatal(err)
	}
	var left []string
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if got := strings.Join(left, " "); err != nil || got != ".control-a.json-18 .control-a.json-x .control-b.json-17 control-a.json" {
		t.Errorf("left: %s, %v", got, err)
	}
}
