package host

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"

	"github.com/tetratelabs/wazero"
)

// Engine holds what the modules of a process share: the implementations of their
// imports, and the machine code of a module that is loaded more than once (two slots may run
// the same module). Modules cannot observe each other.
//
// One Engine serves all modules of a process. Its methods are safe for concurrent use.
// An Engine need not be closed.
type Engine struct {
	building sync.Mutex // serialises compilation

	mu       sync.Mutex
	runtime  wazero.Runtime          // guarded by mu: for all modules without a cache; nil before the first
	programs map[programKey]*program // guarded by mu
	compiled uint64                  // guarded by mu
}

// NewEngine returns an empty engine.
func NewEngine() *Engine { return &Engine{programs: map[programKey]*program{}} }

// programKey identifies a program: by the instrumented code, which includes all limits
// that the machine code depends on, and by the cache directory.
type programKey struct {
	code  [sha256.Size]byte
	cache string
}

// program is the machine code of a module, and the runtime for its instances.
type program struct {
	engine   *Engine
	key      programKey
	runtime  wazero.Runtime
	compiled wazero.CompiledModule
	cache    wazero.CompilationCache // nil if the runtime is the engine's
	modules  int                     // guarded by Engine.mu: number of modules that use the program
}

// program returns the program for instrumented code. The caller must release it.
func (e *Engine) program(ctx context.Context, config Config, code []byte) (*program, error) {
	key := programKey{sha256.Sum256(code), config.Cache}
	e.building.Lock()
	defer e.building.Unlock()
	if p := e.loaded(key); p != nil {
		return p, nil
	}
	p, err := e.compile(ctx, key, config, code)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	p.modules, e.programs[key] = 1, p
	e.compiled++
	return p, nil
}

// Compiled returns how many programs were compiled or loaded from a cache. Each leaves
// some 20 MiB of garbage for a module in Go.
func (e *Engine) Compiled() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.compiled
}

// loaded returns the program with that key and adds a reference to it; nil if it is not
// loaded.
func (e *Engine) loaded(key programKey) *program {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.programs[key]
	if p != nil {
		p.modules++
	}
	return p
}

func (e *Engine) compile(ctx context.Context, key programKey, config Config, code []byte) (*program, error) {
	p := &program{engine: e, key: key}
	var spoilt error
	if config.Cache != "" {
		var err error
		if p.cache, err = openCache(config.Cache, key.code); err != nil {
			return nil, err
		}
		if p.runtime, spoilt = newRuntime(ctx, p.cache); spoilt == nil {
			p.compiled, spoilt = p.runtime.CompileModule(ctx, code)
		}
		if spoilt == nil {
			if err := evictCache(config.Cache, cacheBytes, cacheModules); err != nil {
				config.Logger.Warn("could not evict from the machine code cache", "cache", config.Cache, "error", err)
			}
			return p, nil
		}
		// A damaged file in the cache must not prevent a good module from loading.
		p.close(ctx)
		p.cache = nil
	}
	var err error
	if p.runtime, err = e.shared(ctx); err == nil {
		p.compiled, err = p.runtime.CompileModule(ctx, code)
	}
	if err != nil {
		return nil, fmt.Errorf("host: compile: %w", err)
	}
	if spoilt != nil {
		config.Logger.Warn("could not use the machine code cache", "cache", config.Cache, "error", spoilt)
	}
	return p, nil
}

// shared returns the runtime for modules without a cache.
func (e *Engine) shared(ctx context.Context) (wazero.Runtime, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.runtime != nil {
		return e.runtime, nil
	}
	r, err := newRuntime(ctx, nil)
	if err == nil {
		e.runtime = r
	}
	return r, err
}

// newRuntime returns a runtime that implements the imports, with the cache unless it is
// nil. It does not bound memory: package meter has written a bound into each module.
func newRuntime(ctx context.Context, c wazero.CompilationCache) (wazero.Runtime, error) {
	config := wazero.NewRuntimeConfig().WithDebugInfoEnabled(false)
	if c != nil {
		config = config.WithCompilationCache(c)
	}
	r := wazero.NewRuntimeWithConfig(ctx, config)
	if err := addImports(ctx, r); err != nil {
		return nil, errors.Join(fmt.Errorf("host: imports: %w", err), r.Close(ctx))
	}
	return r, nil
}

// release drops a reference to the program, and frees it with the last one.
func (p *program) release() error {
	p.engine.mu.Lock()
	p.modules--
	last := p.modules == 0
	if last {
		delete(p.engine.programs, p.key)
	}
	p.engine.mu.Unlock()
	if !last {
		return nil
	}
	return p.close(context.Background())
}

func (p *program) close(ctx context.Context) error {
	var errs []error
	if p.compiled != nil {
		errs = append(errs, p.compiled.Close(ctx))
	}
	if p.cache != nil {
		if p.runtime != nil {
			errs = append(errs, p.runtime.Close(ctx))
		}
		errs = append(errs, p.cache.Close(ctx))
	}
	return errors.Join(errs...)
}
