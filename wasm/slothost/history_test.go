package slothost

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

// TestHistory checks which statements a slot may still run after each kind of change.
func TestHistory(t *testing.T) {
	statements := map[lifecycle.Generation]sign.Statement{}
	for g := lifecycle.Generation(1); g < 10; g++ {
		statements[g] = hosttest.Statement(g, []byte{byte(g)}, abi.Select)
	}
	var h history
	check := func(admitted ...lifecycle.Generation) {
		t.Helper()
		for g := lifecycle.Generation(1); g < 10; g++ {
			err := h.admit(statements[g])
			ok := false
			for _, a := range admitted {
				ok = ok || a == g
			}
			if ok != (err == nil) {
				t.Errorf("%d: %v", g, err)
			}
		}
	}
	check(1, 2, 3, 4, 5, 6, 7, 8, 9)
	h.recordWanted([]sign.Statement{statements[2], statements[4]})
	check(2, 4, 5, 6, 7, 8, 9)
	h.recordRan(sign.MarkOf(statements[2]))
	h.recordRan(sign.MarkOf(statements[4]))
	h.recordWanted([]sign.Statement{statements[6]})
	check(2, 4, 6, 7, 8, 9)
	h.recordRan(sign.MarkOf(statements[6]))
	check(4, 6, 7, 8, 9)
	h.recordRollback(6)
	check(4, 7, 8, 9)
	h.recordRan(sign.MarkOf(statements[4]))
	h.recordWanted(nil)
	check(4, 7, 8, 9)
	h.recordRollback(9)
	check(4, 7, 8)
	changed := statements[4]
	changed.Version = "6.6.6"
	if h.admit(changed) == nil {
		t.Error("another statement with the number of one that ran")
	}
	for g := range lifecycle.Generation(1000) {
		h.recordRollback(1000 - g)
	}
	if len(h.RolledBack) != maxRolledBack || h.RolledBack[0] != 1001-maxRolledBack {
		t.Errorf("%d: %v", len(h.RolledBack), h.RolledBack)
	}
}

// TestBadFile checks that the host starts with the native policies, that its error says
// how to fix the file, and that the file is not changed.
func TestBadFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "slots.json")
	c := config(t)
	c.File = name
	for want, text := range map[string]string{
		"unexpected EOF": "{",
		": EOF":          "",
		"unknown field":  `{"format": "cascade-policy-slots/1", "more": 1}`,
		"format":         `{"format": "cascade-policy-slots/2"}`,
		"unknown kind":   `{"format": "cascade-policy-slots/1", "slots": {"coffee": {}}}`,
		"hexadecimal":    `{"format": "cascade-policy-slots/1", "slots": {"place": {"mark": {"generation": 1, "sha256": "ab"}}}}`,
		"above the mark": `{"format": "cascade-policy-slots/1", "slots": {"place": {"ran": [{"generation": 1, "sha256": "` + strings.Repeat("0", 64) + `"}]}}}`,
		"too many or":    `{"format": "cascade-policy-slots/1", "slots": {"place": {"rolled_back": [2, 1]}}}`,
		"too many":       `{"format": "cascade-policy-slots/1", "slots": {"place": {"mark": {"generation": 9, "sha256": "` + strings.Repeat("0", 64) + `"}, "ran": [` + strings.Repeat(`{"generation": 1, "sha256": "`+strings.Repeat("0", 64)+`"}, `, maxRan) + `{"generation": 1, "sha256": "` + strings.Repeat("0", 64) + `"}]}}}`,
		"unsorted":       `{"format": "cascade-policy-slots/1", "slots": {"place": {"rolled_back": [` + strings.Repeat("1, ", maxRolledBack) + `1]}}}`,
		"larger than":    strings.Repeat(" ", maxHistory+1),
		"data after":     `{"format": "cascade-policy-slots/1"} {}`,
	} {
		testkit.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		s, stop := running(t, c)
		if err := s.Err(); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "remove it") {
			t.Errorf("%v, want %q", err, want)
		}
		ask(t, s, 1)
		if err := s.Apply(lifecycle.SlotSpec{Kind: slotKind(abi.Select)}); err == nil || s.Status()[0].Refused == "" {
			t.Error("a want is taken")
		}
		stop()
		if b, err := os.ReadFile(name); err != nil || string(b) != text {
			t.Errorf("the file is changed: %v", err)
		}
	}
	testkit.NoError(t, os.WriteFile(name, []byte(`{"format": "cascade-policy-slots/1"}`), 0o600))
	testkit.NoError(t, os.Chmod(name, 0o622))
	testkit.WantError(t, testkit.Must(New(c)).Err(), "chmod")
	// Opening a pipe would wait for a writer.
	testkit.NoError(t, errors.Join(os.Remove(name), syscall.Mkfifo(name, 0o600)))
	testkit.WantError(t, testkit.Must(New(c)).Err(), "must be a regular file")
}

// TestFileIsTheOwners checks that only the owner can access the file, that it is replaced
// atomically, and that it keeps the entries of other kinds.
func TestFileIsTheOwners(t *testing.T) {
	dir := t.TempDir()
	c := config(t)
	c.File = filepath.Join(dir, "slots.json")
	other := map[string]history{"place": {Mark: sign.Mark{Generation: 3}, RolledBack: []lifecycle.Generation{2}}}
	b := testkit.Must(encodeHistory(other))
	testkit.NoError(t, writeHistory(c.File, b))
	s, stop := running(t, c)
	apply(t, s, want(stable(t, 5, hosttest.LeastLoadModule())))
	waitFor(t, "it is active", func() bool { return phase(s, 5) == "active" })
	stop()
	info, err := os.Stat(c.File)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	got, err := readHistory(c.File)
	if err != nil || !reflect.DeepEqual(got["place"], other["place"]) || len(got["bid-select"].Ran) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}

func FuzzDecodeHistory(f *testing.F) {
	f.Add([]byte(`{"format": "cascade-policy-slots/1", "slots": {"place": {"mark": {"generation": 1, "sha256": "` + strings.Repeat("0", 64) + `"}, "rolled_back": [1,2]}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		slots, err := decodeHistory(b)
		if err != nil {
			return
		}
		text := testkit.Must(encodeHistory(slots))
		again, err := decodeHistory(text)
		if err != nil {
			t.Fatalf("%v:\n%s", err, text)
		}
		if twice, err := encodeHistory(again); err != nil || string(twice) != string(text) {
			t.Errorf("%v:\n%s\n%s", err, text, twice)
		}
	})
}

// TestFolderRemoved checks that a history's removed folder is made again, accessible to
// its owner only; the folder above it is not made.
func TestFolderRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "marks")
	testkit.NoError(t, writeHistory(filepath.Join(dir, "a.json"), []byte("{}")))
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("%v", entries)
	}
	if err := writeHistory(filepath.Join(dir, "no", "parent", "a.json"), nil); err == nil {
		t.Error("a folder without a parent")
	}
}
