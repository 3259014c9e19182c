package host

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"

	"github.com/tetratelabs/wazero"
)

// Engine is what the modules of a process share: what answers their imports, the
// machine code of one that is loaded more than once (two slots may run the same
// module), and the memory of instances that are closed, for those that are made
// next. Modules see nothing of each other.
//
// That is for the callers of other modules: each mapping that a process makes
// executable or gives back stops all its threads for a microsecond or two, and so
// does each new page that is read before it is written. To put a module in force
// takes few of either.
//
// One Engine serves all modules of a process. Its methods are safe for concurrent
// use. It needs not be closed.
type Engine struct {
	memories memories

	building sync.Mutex // one module is compiled at a time

	mu       sync.Mutex
	runtime  wazero.Runtime          // guarded by mu: of all modules without a cache; nil before the first
	programs map[programKey]*program // guarded by mu
	compiled uint64                  // guarded by mu
}

// NewEngine returns an engine. It holds nothing yet.
func NewEngine() *Engine { return &Engine{programs: map[programKey]*program{}} }

// programKey tells programs apart: by the code that package meter wrote, which has
// all limits that the machine code depends on, and where that is kept.
type programKey struct {
	code  [sha256.Size]byte
	cache string
}

// program is machine code, and the runtime that instances of it are made in.
type program struct {
	engine   *Engine
	key      programKey
	runtime  wazero.Runtime
	compiled wazero.CompiledModule
	cache    *cache // with a runtime of its own; nil: the runtime is the engine's
	modules  int    // guarded by Engine.mu: how many have it
}

// program returns the program of what package meter wrote. It is released as
// often.
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

// Compiled is how many programs were compiled, or read from a cache. That leaves
// some 20 MiB of garbage for a module in Go.
func (e *Engine) Compiled() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.compiled
}

// loaded returns a program that is there for one module more, nil when it is not.
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
			p.cache.evict(config)
			return p, nil
		}
		// A damaged file in the cache must not keep a good module away.
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
		config.Logger.Warn("the cache of machine code is of no use", "cache", config.Cache, "error", spoilt)
	}
	return p, nil
}

// shared returns the engine's own runtime.
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

// newRuntime returns a runtime that answers imports, with a cache if there is one.
// It bounds no memory: package meter has written a bound into each module.
func newRuntime(ctx context.Context, c *cache) (wazero.Runtime, error) {
	config := wazero.NewRuntimeConfig().WithDebugInfoEnabled(false)
	if c != nil {
		config = config.WithCompilationCache(c.engine)
	}
	r := wazero.NewRuntimeWithConfig(ctx, config)
	if err := answerImports(ctx, r); err != nil {
		return nil, errors.Join(fmt.Errorf("host: imports: %w", err), r.Close(ctx))
	}
	return r, nil
}

// release gives a program back; with the last module of it, it is freed.
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
		errs = append(errs, p.cache.close(ctx))
	}
	return errors.Join(errs...)
}
