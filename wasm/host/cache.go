package host

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/tetratelabs/wazero"

	"github.com/cascadeinfer/cascade/wasm/meter"
)

// engineVersion names the engine in the cache's path: machine code of another
// version must not be found. The engine does not always know its own version.
const engineVersion = "wazero-v1.12.0"

// openCache returns the engine's cache in a folder below the given one that no
// other engine or meter shares. What it stores is keyed by the rewritten module
// and the processor. Each module has a cache object of its own, so that its
// memory goes with it; they meet on disk, where entries are written whole.
func openCache(dir string) (wazero.CompilationCache, error) {
	path := filepath.Join(dir, strings.ReplaceAll(meter.Version, "/", "-")+"_"+engineVersion)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("host: cache: %w", err)
	}
	for _, p := range [...]string{dir, path} {
		info, err := os.Stat(p)
		if err != nil {
			return nil, fmt.Errorf("host: cache: %w", err)
		}
		if info.Mode().Perm()&0o022 != 0 {
			return nil, fmt.Errorf("host: cache %s: others can write there (%v), and could run code here: chmod go-w it", p, info.Mode().Perm())
		}
	}
	cache, err := wazero.NewCompilationCacheWithDir(path)
	if err != nil {
		return nil, fmt.Errorf("host: cache: %w", err)
	}
	return cache, nil
}

// compile compiles into a runtime of its own, with the cache if there is one.
func compile(ctx context.Context, code []byte, pages uint32, cache wazero.CompilationCache) (wazero.Runtime, wazero.CompiledModule, error) {
	config := wazero.NewRuntimeConfig().WithMemoryLimitPages(pages).WithDebugInfoEnabled(false)
	if cache != nil {
		config = config.WithCompilationCache(cache)
	}
	r := wazero.NewRuntimeWithConfig(ctx, config)
	compiled, err := r.CompileModule(ctx, code)
	if err != nil {
		r.Close(ctx)
		return nil, nil, err
	}
	return r, compiled, nil
}
