package wiring

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies/identity"
)

// TestMarks: where a process remembers what it has admitted, and that it says so
// where it cannot.
func TestMarks(t *testing.T) {
	for fields, want := range map[string]struct{ file, warning string }{
		"policies: {keys: [k.pub], marks: m}\n":             {"m/control-a.json", ""},
		"state: s\npolicies: {keys: [k.pub]}\n":             {"s/marks/control-a.json", ""},
		"state: s\npolicies: {keys: [k.pub], marks: m}\n":   {"m/control-a.json", ""},
		"policies: {keys: [k.pub]}\n":                       {"", "policies.marks: set a directory, or state"},
		"state: k.pub\npolicies: {keys: [k.pub]}\n":         {"", "policies.marks: set a directory of this host"},
		"policies: {keys: [k.pub], native: true}\n":         {"", ""},
		"state: k.pub\npolicies: {keys: [k.pub], marks: m}": {"m/control-a.json", ""},
	} {
		f := load(t, fields)
		writeFile(t, filepath.Join(f.Dir, "k.pub"), publicKey(t))
		p, err := f.Policies(identity.Control, "a", 0)
		if err != nil {
			t.Fatal(err)
		}
		file := ""
		if want.file != "" {
			file = filepath.Join(f.Dir, want.file)
			if info, err := os.Stat(filepath.Dir(file)); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("%q: %v, %v", fields, info, err)
			}
		}
		if p.MarksFile != file || !strings.HasPrefix(p.MarksWarning, want.warning) || (p.MarksWarning == "") != (want.warning == "") {
			t.Errorf("%q: file %q, warning %q", fields, p.MarksFile, p.MarksWarning)
		}
	}
	f := load(t, "policies: {keys: [k.pub], marks: k.pub}\n")
	writeFile(t, filepath.Join(f.Dir, "k.pub"), publicKey(t))
	if _, err := f.Policies(identity.Control, "a", 0); err == nil || !strings.HasPrefix(err.Error(), "policies.marks: ") {
		t.Error(err)
	}
}

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
