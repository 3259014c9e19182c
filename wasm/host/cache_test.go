package host

import (
	"bytes"
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// files returns the regular files below a folder, without lock files.
func files(t *testing.T, dir string) (list []string) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && d.Name() != "lock" {
			list = append(list, path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return list
}

func TestCacheIsUsedAndOutlivesDamage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	code := hosttest.Policy(hosttest.LeastLoad()).Encode()
	var log bytes.Buffer
	try := func() {
		t.Helper()
		i := instance(t, load(t, Config{Cache: dir, Logger: slog.New(slog.NewTextHandler(&log, nil))}, code))
		if _, err := i.Select(abi.Call{}, sixteen()); err != nil {
			t.Error(err)
		}
	}
	try()
	first := files(t, dir)
	if len(first) != 1 {
		t.Fatalf("files in the cache: %v", first)
	}
	try()
	if again := files(t, dir); len(again) != 1 || log.Len() > 0 {
		t.Errorf("files in the cache: %v\n%s", again, &log)
	}
	good := testkit.Must(os.ReadFile(first[0]))
	for name, bad := range map[string][]byte{"flipped": bytes.Clone(good), "short": good[:len(good)/2], "empty": nil} {
		if name == "flipped" {
			bad[len(bad)/2] ^= 1
		}
		testkit.NoError(t, os.WriteFile(first[0], bad, 0o600))
		log.Reset()
		try()
		t.Logf("%s: %s", name, &log)
	}
}

func TestCacheOthersCanWriteIsRefused(t *testing.T) {
	dir := t.TempDir()
	testkit.NoError(t, os.Chmod(dir, 0o777))
	m, err := Load(context.Background(), Config{Cache: dir}, hosttest.Policy(hosttest.LeastLoad()).Encode())
	if err == nil {
		m.Close()
	}
	testkit.WantError(t, err, "others can write")
	file := filepath.Join(t.TempDir(), "file")
	testkit.NoError(t, os.WriteFile(file, nil, 0o600))
	if _, err := Load(context.Background(), Config{Cache: file}, hosttest.Policy(hosttest.LeastLoad()).Encode()); err == nil {
		t.Error("a file served as cache")
	}
}

// TestEngineVersion checks that the cache's path has the version of the engine.
func TestEngineVersion(t *testing.T) {
	mod := testkit.Must(os.ReadFile("../../go.mod"))
	want := "github.com/tetratelabs/wazero " + strings.TrimPrefix(engineVersion, "wazero-")
	if !strings.Contains(string(mod), want) {
		t.Errorf("go.mod does not have %q", want)
	}
}

// TestCacheIsBounded loads more modules than the cache may have, and checks that the least
// recently loaded ones are removed, and that those loaded now stay and keep working.
func TestCacheIsBounded(t *testing.T) {
	dir := t.TempDir()
	c := Config{Cache: dir, CacheModules: 3}
	policy := func(n int) []byte { return hosttest.Policy(selects(hosttest.Result(1, uint32(n)))).Encode() }
	stays := load(t, c, policy(0))
	for n := 1; n < 8; n++ {
		m := testkit.Must(Load(context.Background(), c, policy(n)))
		if got := len(files(t, dir)); got > 3 {
			t.Errorf("after %d modules there are %d files", n+1, got)
		}
		testkit.NoError(t, m.Close())
	}
	kept := files(t, dir)
	again := testkit.Must(Load(context.Background(), c, policy(0)))
	defer again.Close()
	if now := files(t, dir); !slices.Equal(now, kept) {
		t.Errorf("the module that was loaded all the time had to be compiled anew: %v, before %v", now, kept)
	}
	if _, err := instance(t, stays).Select(abi.Call{}, sixteen()); err != nil {
		t.Error(err)
	}
	c.CacheBytes, c.CacheModules = 1, 0 // smaller than every module
	m := testkit.Must(Load(context.Background(), c, policy(9)))
	defer m.Close()
	if got := len(files(t, dir)); got != 2 {
		t.Errorf("%d files are left, two modules are loaded", got)
	}
	c.CacheBytes = -1
	if _, err := Load(context.Background(), c, policy(9)); err == nil {
		t.Error("a negative bound")
	}
}
