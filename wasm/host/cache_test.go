package host

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// files returns the regular files below a folder.
func files(t *testing.T, dir string) (list []string) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
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

// TestCacheOfOthersIsRefused makes each folder of the cache writable for others.
func TestCacheOfOthersIsRefused(t *testing.T) {
	code := hosttest.Policy(hosttest.LeastLoad()).Encode()
	for depth := range 3 {
		for _, mode := range []os.FileMode{0o777, 0o770, 0o702, 0o720} {
			dir := filepath.Join(t.TempDir(), "new", "cache")
			testkit.NoError(t, testkit.Must(Load(context.Background(), Config{Cache: dir}, code)).Close())
			pattern := dir + strings.Repeat("/*", depth)
			folder := testkit.Must(filepath.Glob(pattern))[0]
			if info := testkit.Must(os.Stat(folder)); info.Mode().Perm() != 0o700 {
				t.Errorf("%s has mode %v", folder, info.Mode())
			}
			testkit.NoError(t, os.Chmod(folder, mode))
			m, err := Load(context.Background(), Config{Cache: dir}, code)
			if err == nil {
				m.Close()
			}
			testkit.WantError(t, err, "others can write")
		}
	}
	if os.Geteuid() == 0 {
		dir := t.TempDir()
		if err := os.Chown(dir, 12345, -1); err != nil {
			testkit.Skip(t, testkit.Unavailable{What: err.Error(), Remedy: "run it as root with CAP_CHOWN"})
		}
		_, err := Load(context.Background(), Config{Cache: dir}, code)
		testkit.WantError(t, err, "another user")
	}
	file := filepath.Join(t.TempDir(), "file")
	testkit.NoError(t, os.WriteFile(file, nil, 0o600))
	if _, err := Load(context.Background(), Config{Cache: file}, code); err == nil {
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
// recently loaded ones are removed, and that those loaded now keep working.
func TestCacheIsBounded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a [strange] *name")
	other := filepath.Join(dir, "other", strings.Repeat("0", 64))
	testkit.NoError(t, os.MkdirAll(other, 0o700))
	c := Config{Cache: dir}
	policy := func(n int) []byte { return hosttest.Policy(selects(hosttest.Result(1, uint32(n)))).Encode() }
	stays := load(t, c, policy(0))
	var kept []string
	for n := 1; n < 8; n++ {
		m := testkit.Must(Load(context.Background(), c, policy(n)))
		testkit.NoError(t, evictCache(dir, cacheBytes, 3))
		now := files(t, dir)
		if len(now) > 3 || n > 3 && !slices.ContainsFunc(now, func(f string) bool { return !slices.Contains(kept, f) }) {
			t.Errorf("after %d modules there are %v, before %v", n+1, now, kept)
		}
		kept = now
		testkit.NoError(t, m.Close())
	}
	if _, err := instance(t, stays).Select(abi.Call{}, sixteen()); err != nil {
		t.Error(err)
	}
	testkit.NoError(t, evictCache(dir, 1, cacheModules)) // smaller than every module
	if got := files(t, dir); len(got) != 0 {
		t.Errorf("%v are left", got)
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("what is not an entry was removed: %v", err)
	}
	// Load keeps the bounds.
	for n := range 2 * cacheModules {
		testkit.NoError(t, os.MkdirAll(filepath.Join(dir, codePrefix+"old", fmt.Sprintf("%064x", n)), 0o700))
	}
	m := testkit.Must(Load(context.Background(), c, policy(9)))
	defer m.Close()
	if all := testkit.Must(fs.Glob(os.DirFS(dir), codePrefix+"*/*")); len(all) != cacheModules || len(files(t, dir)) != 1 {
		t.Errorf("%d entries, %v", len(all), files(t, dir))
	}
}

// TestCacheIsOpenedWhileOthersEvict opens an entry again and again while it is evicted.
func TestCacheIsOpenedWhileOthersEvict(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	var evictor sync.WaitGroup
	evictor.Go(func() {
		for ctx.Err() == nil {
			_ = evictCache(dir, 0, 0)
		}
	})
	for range 2000 {
		c, err := openCache(dir, sha256.Sum256(nil))
		if err != nil {
			t.Error(err)
			break
		}
		testkit.NoError(t, c.Close(context.Background()))
	}
	cancel()
	evictor.Wait()
}
