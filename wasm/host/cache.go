package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tetratelabs/wazero"

	"github.com/cascadeinfer/cascade/wasm/meter"
)

const (
	// engineVersion is part of the cache's path, so that machine code of another engine
	// version is never loaded. The engine does not always know its own version.
	engineVersion = "wazero-v1.12.0"
	// codePrefix is the prefix of the folders in the cache, one for each version of the code
	// that makes entries.
	codePrefix = "code-"
	// openTries is how often openCache tries to open an entry, which other processes may evict meanwhile.
	openTries = 10
)

// openCache opens the entry of one module's machine code in a cache directory, which several
// processes may share. No other module, meter version or engine version shares the entry. The
// engine adds the processor to the key of what it stores, and writes its files atomically.
func openCache(dir string, sum [sha256.Size]byte) (c wazero.CompilationCache, err error) {
	for range openTries {
		if c, err = openEntry(dir, sum); err == nil {
			return c, nil
		}
	}
	return nil, err
}

// openEntry makes the folders of an entry if they are missing, checks them, and opens the entry.
func openEntry(dir string, sum [sha256.Size]byte) (wazero.CompilationCache, error) {
	version := filepath.Join(dir, codePrefix+strings.ReplaceAll(meter.Version, "/", "-")+"_"+engineVersion)
	entry := filepath.Join(version, hex.EncodeToString(sum[:]))
	if err := os.MkdirAll(entry, 0o700); err != nil {
		return nil, fmt.Errorf("host: cache: %w", err)
	}
	for _, folder := range [...]string{dir, version, entry} {
		if err := checkOwner(folder); err != nil {
			return nil, err
		}
	}
	c, err := wazero.NewCompilationCacheWithDir(entry)
	if err != nil {
		return nil, fmt.Errorf("host: cache: %w", err)
	}
	now := time.Now() // when the entry was loaded last
	if err := os.Chtimes(entry, now, now); err != nil {
		c.Close(context.Background())
		return nil, fmt.Errorf("host: cache: %w", err)
	}
	return c, nil
}

// checkOwner returns an error if users other than this one and root can write to a folder of
// the cache, because its content is executed.
func checkOwner(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("host: cache: %w", err)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("host: cache %s: others can write there (%v), and could run code here: chmod go-w it, or name another folder", path, info.Mode().Perm())
	case !mine(info):
		return fmt.Errorf("host: cache %s: it belongs to another user, who could run code here: chown it, or name another folder", path)
	}
	return nil
}

// evictCache removes the entries that were loaded longest ago, of all versions, until the rest
// is within the bounds. A module that is loaded does not need its entry, and another process
// that is about to load one compiles it anew.
func evictCache(dir string, bytes int64, entries int) error {
	type entry struct {
		path   string
		size   int64
		loaded time.Time
	}
	var all []entry
	paths, err := fs.Glob(os.DirFS(dir), codePrefix+"*/"+strings.Repeat("[0-9a-f]", 2*sha256.Size))
	for _, path := range paths {
		e := entry{path: filepath.Join(dir, path)}
		if info, err := os.Stat(e.path); err == nil {
			e.loaded = info.ModTime()
		}
		_ = filepath.WalkDir(e.path, func(_ string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				if info, err := d.Info(); err == nil { // another process may have removed it
					e.size += info.Size()
				}
			}
			return nil
		})
		all = append(all, e)
		bytes -= e.size
	}
	slices.SortFunc(all, func(a, b entry) int { return a.loaded.Compare(b.loaded) })
	for n := len(all); n > 0 && (n > entries || bytes < 0); n-- {
		e := all[len(all)-n]
		if err := os.RemoveAll(e.path); err != nil {
			return err
		}
		os.Remove(filepath.Dir(e.path)) // fails unless this was the last entry of its version
		bytes += e.size
	}
	return err
}
