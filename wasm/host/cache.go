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

// engineVersion names the engine in the cache's path: machine code of another
// version must not be found. The engine does not always know its own version.
const engineVersion = "wazero-v1.12.0"

// cache is a module's machine code on disk, and the engine's view of it.
type cache struct {
	engine wazero.CompilationCache
	entry  *cachedir.Entry
}

// openCache opens the module's entry below a folder, which no other module, meter
// or engine shares. What the engine stores there is keyed by the processor, too,
// and written whole.
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

// evict keeps the folder within its limits, when something was added to it.
func (c *cache) evict(config Config) {
	if !c.entry.Fresh() {
		return
	}
	if _, err := cachedir.Evict(config.Cache, cachedir.Limits{Bytes: config.CacheBytes, Entries: config.CacheModules}); err != nil {
		config.Logger.Warn("the cache of machine code cannot be kept within its limits", "cache", config.Cache, "error", err)
	}
}

func (c *cache) close(ctx context.Context) error {
	return errors.Join(c.engine.Close(ctx), c.entry.Close())
}
