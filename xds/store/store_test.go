package store_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/internal/storetest"
	"github.com/cascadeinfer/cascade/xds/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemory(t *testing.T) {
	storetest.Run(t, func(*testing.T) func() store.Backend {
		m := store.NewMemory()
		return func() store.Backend { return m }
	})
}

func TestFile(t *testing.T) {
	storetest.Run(t, func(t *testing.T) func() store.Backend {
		dir := filepath.Join(t.TempDir(), "state")
		return func() store.Backend { return testkit.Must(store.NewFile(dir)) }
	})
}

// TestFileErrors reads invalid files: the error names the file and the position.
func TestFileErrors(t *testing.T) {
	for name, c := range map[string]struct{ body, want string }{
		"empty":         {"", "EOF"},
		"cut":           {`{"format":2,`, "unexpected EOF"},
		"no format":     {`{"plan":{}}`, "format 0: must be 2"},
		"newer format":  {`{"format":3,"color":"red"}`, "written by another version of this program: format 3, and this program reads 2: start a version that reads it"},
		"older format":  {`{"format":1,"revision":7}`, "format 1, and this program reads 2"},
		"unknown field": {`{"format":2,"color":"red"}`, `unknown field "color"`},
		"two objects":   {`{"format":2}{}`, "data after the JSON value"},
		"wrong type":    {`{"format":2,"plan":{"inline":{"epoch":-1}},"state":{"inline":{}}}`, "plan: the stored plan is damaged: json: cannot unmarshal"},
		"a hole":        {`{"format":2,"plan":{"inline":{"epoch":1,"plans":[{"model":"m","epoch":1,"stages":[{"low":5,"replicas":["a"]}]}]}},"state":{"inline":{}}}`, "plan of m, stage 0: 3:"},
		"huge":          {strings.Repeat(" ", 24<<20) + "{}", "larger than"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "plan.json")
			testkit.NoError(t, os.WriteFile(path, []byte(c.body), 0o600))
			u := storetest.Read(t, store.New(testkit.Must(store.NewFile(dir))))
			if u.Err == nil || !strings.Contains(u.Err.Error(), path) || !strings.Contains(u.Err.Error(), c.want) {
				t.Fatalf("error %v, want %q in %s", u.Err, c.want, path)
			}
		})
	}
	if _, err := store.NewFile(filepath.Join(os.DevNull, "state")); err == nil {
		t.Error("opened a directory below a file")
	}
}

// TestFileOfEarlierVersion reads a file of a version that had prefix keys, and writes it without them.
func TestFileOfEarlierVersion(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "plan.json")
	testkit.NoError(t, os.WriteFile(path, []byte(`{"format":2,"plan":{"inline":{"epoch":3}},"state":{"inline":{"bytes_per_token":[{"model":"m","milli":5000}],`+
		`"prefix_depths":[{"model":"m","bytes":8192}]}}}`), 0o600))
	s := store.New(testkit.Must(store.NewFile(dir)))
	u := storetest.Read(t, s)
	if u.Err != nil || u.Object.Epoch != 3 || len(u.Object.Ratios) != 1 {
		t.Fatalf("read %+v, %v", u.Object, u.Err)
	}
	_ = testkit.Must(s.CompareAndSwap(t.Context(), u.Version, u.Object))
	if text := testkit.Must(os.ReadFile(path)); !bytes.Contains(text, []byte("5000")) || bytes.Contains(text, []byte("prefix_depths")) {
		t.Errorf("written: %s", text)
	}
}

// TestFileLeavesNothing checks which files there are after writes, and who may read them. Temporary files of writers
// that were interrupted are removed, others are left alone.
func TestFileLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	b := testkit.Must(store.NewFile(dir))
	s, v := store.New(b), store.Version("")
	testkit.NoError(t, s.PutNote(t.Context(), "a", []byte("x")))
	var err error
	for range 3 {
		v, err = s.CompareAndSwap(t.Context(), v, storetest.Object(1))
		testkit.NoError(t, err)
	}
	past := time.Now().Add(-2 * time.Hour)
	for _, name := range []string{"notes/c.tmp17", "plan.json.tmp17", "notes/mine.TXT", "notes/c.tmpl"} {
		testkit.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("old"), 0o600))
		testkit.NoError(t, os.Chtimes(filepath.Join(dir, name), past, past))
	}
	names, err := testkit.Must(store.NewFile(dir)).ListBlobs(t.Context(), store.Notes)
	if err != nil || len(names) != 1 {
		t.Fatalf("notes %q, %v", names, err)
	}
	want := map[string]os.FileMode{
		"plan.json": 0o644, "plan.json.lock": 0o644, "notes/" + names[0]: 0o600, "notes/mine.TXT": 0o600, "notes/c.tmpl": 0o600,
	}
	var got []string
	for name, mode := range want {
		got = append(got, name)
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v, want mode %v", name, info, err, mode)
		}
	}
	if err := fstest.TestFS(os.DirFS(dir), got...); err != nil {
		t.Error(err)
	}
	var all []string
	testkit.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if !d.IsDir() {
			all = append(all, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	}))
	slices.Sort(got)
	if !slices.Equal(all, got) {
		t.Errorf("files %q, want %q", all, got)
	}
}

// TestFileHangs puts pipes in the way of files, as a file server that hangs: each call returns when its context ends,
// and the files of other folders can be used.
func TestFileHangs(t *testing.T) {
	dir := t.TempDir()
	b := testkit.Must(store.NewFile(dir))
	s, code := store.New(b), lifecycle.Digest{1}
	testkit.NoError(t, b.CreateBlob(t.Context(), store.Modules, "0", nil))
	var pipes []string
	for _, name := range []string{"plan.json", "modules/" + code.String() + ".0.0000.0001"} {
		testkit.NoError(t, syscall.Mkfifo(filepath.Join(dir, name), 0o600))
		pipes = append(pipes, filepath.Join(dir, name))
	}
	soon := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	for range 2 {
		for name, call := range map[string]func() error{
			"read":   func() error { _, err := b.ReadRoot(soon()); return err },
			"swap":   func() error { _, err := s.CompareAndSwap(soon(), "", storetest.Object(1)); return err },
			"module": func() error { _, err := s.Module(soon(), code); return err },
		} {
			if err := call(); !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "has not answered: check the disk") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	testkit.NoError(t, s.PutNote(t.Context(), "a", []byte("x")))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Module(ended, code); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of a context: %v", err)
	}
	for _, path := range pipes { // ends the reads
		p := testkit.Must(os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0))
		testkit.NoError(t, os.Remove(path))
		p.Close()
	}
	testkit.WaitFor(t, "the files answer again", func() bool {
		_, err := s.CompareAndSwap(soon(), "", storetest.Object(1))
		_, missing := s.Module(soon(), code)
		return err == nil && errors.Is(missing, store.ErrNoModule)
	})
}
