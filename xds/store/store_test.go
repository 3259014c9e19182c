package store_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/xds/internal/storetest"
	"github.com/cascadeinfer/cascade/xds/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemory(t *testing.T) {
	storetest.Run(t, func(*testing.T) func() store.Store {
		m := new(store.Memory)
		return func() store.Store { return m }
	})
}

func open(t testing.TB, path string) *store.File {
	t.Helper()
	f, err := store.NewFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFile(t *testing.T) {
	storetest.Run(t, func(t *testing.T) func() store.Store {
		path := filepath.Join(t.TempDir(), "plan.json")
		return func() store.Store { return open(t, path) }
	})
}

func TestBrokenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plan.json")
	var good []byte
	storetest.RunUnreadable(t, open(t, path), func() {
		good, _ = os.ReadFile(path)
		write(t, path, good[:len(good)/2])
	}, func() { write(t, path, good) })
}

// write replaces a file as an editor would.
func write(t *testing.T, path string, body []byte) {
	t.Helper()
	if err := os.WriteFile(path+".edit", body, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".edit", path); err != nil {
		t.Fatal(err)
	}
}

// TestFileErrors reads invalid files: the error names the file and the position.
func TestFileErrors(t *testing.T) {
	for name, c := range map[string]struct{ body, want string }{
		"empty":         {"", "byte 0: EOF"},
		"cut":           {`{"format":1,`, "unexpected EOF"},
		"other format":  {`{"format":0}`, "format 0: must be 1"},
		"newer format":  {`{"format":2,"color":"red"}`, "the plan was written by a newer version: format 2, and this program reads up to 1"},
		"unknown field": {`{"format":1,"color":"red"}`, `unknown field "color"`},
		"two objects":   {`{"format":1}{}`, "more than one JSON object"},
		"wrong type":    {`{"format":1,"epoch":-1}`, "epoch"},
		"absurd epoch":  {`{"format":1,"epoch":18446744073709551615}`, "epoch 18446744073709551615: must be at most 4611686018427387904"},
		"a hole":        {`{"format":1,"epoch":1,"plans":[{"model":"m","epoch":1,"stages":[{"low":5,"replicas":["a"]}]}]}`, "plan of m, stage 0: 3:"},
		"no replica":    {`{"format":1,"plans":[{"model":"m","stages":[{"low":0}]}]}`, "at least one replica"},
		"no id":         {`{"format":1,"plans":[{"model":"m","stages":[{"low":0,"replicas":[""]}]}]}`, "replica id"},
		"huge":          {strings.Repeat(" ", 8<<20) + "{}", "larger than"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "plan.json")
			write(t, path, []byte(c.body))
			u := <-open(t, path).Watch(t.Context())
			if u.Err == nil {
				t.Fatal("no error")
			}
			if !strings.Contains(u.Err.Error(), path) || !strings.Contains(u.Err.Error(), c.want) {
				t.Fatalf("error %q, want %q in %s", u.Err, c.want, path)
			}
		})
	}
	if _, err := store.NewFile(filepath.Join(t.TempDir(), "missing", "plan.json")); err == nil {
		t.Error("opened a file in a directory that does not exist")
	}
}

// TestFileLeavesNothing checks that a write leaves only the file and its lock.
func TestFileLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	f := open(t, filepath.Join(dir, "plan.json"))
	v := store.Version("")
	for e := range 3 {
		var err error
		if v, err = f.CompareAndSwap(t.Context(), v, storetest.Object(1)); err != nil {
			t.Fatal(e, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 2 {
		t.Errorf("files left: %v", entries)
	}
	if info, err := os.Stat(filepath.Join(dir, "plan.json")); err != nil || info.Mode() != 0o644 {
		t.Errorf("the file's mode is %v, %v", info.Mode(), err)
	}
}

func BenchmarkFileSwap(b *testing.B) {
	f := open(b, filepath.Join(b.TempDir(), "plan.json"))
	o := storetest.LargeObject(10000)
	v := store.Version("")
	for b.Loop() {
		var err error
		if v, err = f.CompareAndSwap(b.Context(), v, o); err != nil {
			b.Fatal(err)
		}
	}
}
