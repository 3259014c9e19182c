package cachedir

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// key returns the nth key.
func key(n int) string { return fmt.Sprintf("%064x", n) }

// fill makes an entry of the given size that was last used at the given time, and closes it.
func fill(t *testing.T, dir, version string, n, bytes int, used int64) string {
	t.Helper()
	e := testkit.Must(Open(dir, version, key(n)))
	deep := filepath.Join(e.Path(), "engine")
	testkit.NoError(t, os.MkdirAll(deep, 0o700))
	testkit.NoError(t, os.WriteFile(filepath.Join(deep, "code"), make([]byte, bytes), 0o600))
	at := time.Unix(used, 0)
	testkit.NoError(t, os.Chtimes(filepath.Join(e.Path(), lockName), at, at))
	testkit.NoError(t, e.Close())
	return e.Path()
}

func left(t *testing.T, paths []string) (text string) {
	t.Helper()
	for i, p := range paths {
		if _, err := os.Stat(p); err == nil {
			text += fmt.Sprint(i)
		}
	}
	return text
}

func TestEvict(t *testing.T) {
	if !locks {
		testkit.Skip(t, testkit.Unavailable{What: "this system has no file locks, so that nothing is removed", Remedy: "run it on a Unix"})
	}
	for _, c := range []struct {
		limits Limits
		want   string
	}{
		{Limits{1 << 20, 10}, "01234"},
		{Limits{500, 10}, "01234"},
		{Limits{499, 10}, "0134"}, // entry 2 is the least recently used one, then 0
		{Limits{300, 10}, "134"},
		{Limits{1 << 20, 2}, "14"},
		{Limits{0, 0}, ""},
		{Limits{0, 10}, ""},
	} {
		dir := filepath.Join(t.TempDir(), "a [strange] *name")
		var paths []string
		for n, used := range []int64{20, 40, 10, 30, 50} {
			version := "1"
			if n == 4 {
				version = "2"
			}
			paths = append(paths, fill(t, dir, version, n, 100, 1_000_000+used))
		}
		other := filepath.Join(dir, "other", key(0))
		testkit.NoError(t, os.MkdirAll(other, 0o700))
		removed, err := Evict(dir, c.limits)
		if got := left(t, paths); err != nil || got != c.want || removed != 5-len(c.want) {
			t.Errorf("%+v leaves %q, want %q; %d removed, %v", c.limits, got, c.want, removed, err)
		}
		if _, err := os.Stat(other); err != nil {
			t.Errorf("what is not an entry was removed: %v", err)
		}
		if _, err := os.Stat(filepath.Join(dir, sort+"1")); (err == nil) != strings.ContainsAny(c.want, "0123") {
			t.Errorf("%+v: the folder of a version: %v", c.limits, err)
		}
	}
}

func TestOpenEntriesStay(t *testing.T) {
	dir := t.TempDir()
	open := fill(t, dir, "1", 1, 100, 10)
	closed := fill(t, dir, "1", 2, 100, 20)
	e := testkit.Must(Open(dir, "1", key(1)))
	if e.Fresh() {
		t.Error("a full entry is fresh")
	}
	if n, err := Evict(dir, Limits{}); err != nil || n != 1 || left(t, []string{open, closed}) != "0" {
		t.Errorf("%d removed, %v; left: %q", n, err, left(t, []string{open, closed}))
	}
	e.Close()
	if n, err := Evict(dir, Limits{}); err != nil || n != 1 || left(t, []string{open}) != "" {
		t.Errorf("%d removed after it was closed, %v", n, err)
	}
	again, err := Open(dir, "1", key(1))
	if err != nil || !again.Fresh() {
		t.Fatalf("made anew: %v", err)
	}
	again.Close()
}

// TestUseIsNoticed checks that the entry opened last is removed last.
func TestUseIsNoticed(t *testing.T) {
	dir := t.TempDir()
	paths := []string{fill(t, dir, "1", 0, 1, 10), fill(t, dir, "1", 1, 1, 20)}
	e := testkit.Must(Open(dir, "1", key(0)))
	e.Close()
	if _, err := Evict(dir, Limits{100, 1}); err != nil || left(t, paths) != "0" {
		t.Errorf("left: %q, %v", left(t, paths), err)
	}
}

// TestOtherProcesses keeps an entry open in a second process.
func TestOtherProcesses(t *testing.T) {
	if dir := os.Getenv("CACHEDIR_HOLD"); dir != "" {
		e, err := Open(dir, "1", key(1))
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		defer e.Close()
		fmt.Println("open")
		os.Stdin.Read(make([]byte, 1)) // until the parent closes it
		return
	}
	dir := t.TempDir()
	path := fill(t, dir, "1", 1, 100, 10)
	cmd := exec.Command(os.Args[0], "-test.run=^TestOtherProcesses$")
	cmd.Env = append(os.Environ(), "CACHEDIR_HOLD="+dir)
	in := testkit.Must(cmd.StdinPipe())
	out := testkit.Must(cmd.StdoutPipe())
	testkit.NoError(t, cmd.Start())
	if line := make([]byte, 4); true {
		if _, err := io.ReadFull(out, line); err != nil || string(line) != "open" {
			t.Fatalf("%q, %v", line, err)
		}
	}
	if n, err := Evict(dir, Limits{}); err != nil || n != 0 || left(t, []string{path}) != "0" {
		t.Errorf("%d removed, %v", n, err)
	}
	in.Close()
	cmd.Wait()
	if n, err := Evict(dir, Limits{}); err != nil || n != 1 {
		t.Errorf("%d removed after the process ended, %v", n, err)
	}
}

// TestTogether opens and evicts concurrently, and checks that open entries keep their content.
func TestTogether(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for n := range 200 {
				e, err := Open(dir, "1", key(n%3))
				if err != nil {
					t.Error(err)
					return
				}
				name := filepath.Join(e.Path(), fmt.Sprint("file-", w))
				if err := os.WriteFile(name, []byte("code"), 0o600); err != nil {
					t.Error(err)
				}
				if _, err := os.ReadFile(name); err != nil {
					t.Error(err)
				}
				e.Close()
				if _, err := Evict(dir, Limits{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestFoldersOfOthersAreRefused(t *testing.T) {
	for _, c := range []struct {
		what string
		path func(dir string) string
	}{
		{"the folder", func(dir string) string { return dir }},
		{"a version's", func(dir string) string { return filepath.Join(dir, sort+"1") }},
		{"an entry's", func(dir string) string { return filepath.Join(dir, sort+"1", key(1)) }},
	} {
		for _, mode := range []os.FileMode{0o777, 0o770, 0o702, 0o720} {
			dir := t.TempDir()
			fill(t, dir, "1", 1, 1, 1)
			testkit.NoError(t, os.Chmod(c.path(dir), mode))
			if _, err := Open(dir, "1", key(1)); err == nil || !strings.Contains(err.Error(), "others can write") || !strings.Contains(err.Error(), "chmod go-w") {
				t.Errorf("%s, mode %v: %v", c.what, mode, err)
			}
		}
	}
	made := filepath.Join(t.TempDir(), "new", "cache")
	fill(t, made, "1", 1, 1, 1)
	if info, err := os.Stat(made); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("a new folder has %v, %v", info.Mode(), err)
	}
	if os.Geteuid() == 0 {
		dir := t.TempDir()
		if err := os.Chown(dir, 12345, -1); err != nil {
			testkit.Skip(t, testkit.Unavailable{What: err.Error(), Remedy: "run it as root with CAP_CHOWN"})
		}
		_, err := Open(dir, "1", key(1))
		testkit.WantError(t, err, "another user")
	}
	file := filepath.Join(t.TempDir(), "file")
	os.WriteFile(file, nil, 0o600)
	if _, err := Open(file, "1", key(1)); err == nil {
		t.Error("a file served as cache")
	}
	for _, bad := range [][2]string{{"1", "short"}, {"../1", key(1)}, {"1", "../" + key(1)[3:]}} {
		if _, err := Open(t.TempDir(), bad[0], bad[1]); err == nil {
			t.Errorf("%q is an entry", bad)
		}
	}
}
