package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/tetratelabs/wazero"

	"github.com/cascadeinfer/cascade/wasm/internal/cachedir"
	"github.com/cascadeinfer/cascade/wasm/meter"
)

// engineVersion is part of the cache's path, so that machine code of another engine
// version is never loaded. The engine does not always know its own version.
const engineVersion = "wazero-v1.12.0"

// cache is the cache entry of one module's machine code, and the engine's view of it.
type cache struct {
	engine wazero.CompilationCache
	entry  *cachedir.Entry
}

// openCache opens the module's entry in a cache directory. No other module, meter
// version or engine version shares the entry. The engine adds the processor to the key
// of what it stores, and writes its files atomically.
func openCache(dir string, sum [sha256.Size]byte) (*cache, error) {
	version := strings.ReplaceAll(meter.Version, "/", "-") + "_" + engineVersion
	entry, err := cachedir.Open(dir, version, hex.EncodeToString(sum[:]))
	if err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	engine, err := wazero.NewCompilationCacheWithDir(entry.Path())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("host: cache: %w", err), entry.Close())
	}
	return &cache{engine, entry}, nil
}

// evict keeps the directory within its limits, if this entry is new.
func (c *cache) evict(config Config) {
	if !c.entry.Fresh() {
		return
	}
	if _, err := cachedir.Evict(config.Cache, cachedir.Limits{Bytes: config.CacheBytes, Entries: config.CacheModules}); err != nil {
		config.Logger.Warn("could not evict from the machine code cache", "cache", config.Cache, "error", err)
	}
}

func (c *cache) close(ctx context.Context) error {
	return errors.Join(c.engine.Close(ctx), c.entry.Close())
}
