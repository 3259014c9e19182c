// Package emulator is an OpenAI-compatible inference replica without a GPU. A client cannot
// distinguish the parts of the HTTP API that it covers from vLLM's.
//
// It batches continuously, queues, chunks prefills, preempts and caches prefixes as vLLM
// does, with the iteration times of a measured cost profile, and keeps a paged KV cache of
// real bytes on which every next token depends. It is not a language model: the text
// consists of words without meaning. Sampling parameters are accepted and have no effect.
// More than one prompt or choice, log-probabilities, echo, tools, structured output, images
// and adapters are rejected with a 400, since ignoring them would change the answer.
//
// With Config.Blocks it also shows its block table (engine/api): requests can be
// frozen, read and continued from KV bytes that another replica computed, with a reservation
// in place of a prompt (kv_transfer_params.cascade_reservation).
//
// With Config.KVSocket it hands KV over as vLLM does with a CascadeConnector (engine/api). With
// Config.KVEvents it publishes which blocks its prefix cache holds.
//
// Invariant: equal token ids get equal continuations from every replica of the same model
// name, whatever else runs there.
package emulator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sync/errgroup"

	kvapi "github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/engine/internal/blocktable"
	"github.com/cascadeinfer/cascade/engine/internal/kvport"
)

// maxWaiting bounds the requests that wait to be scheduled; further ones get a 503. vLLM has
// no bound and runs out of memory.
const maxWaiting = 65_536

// maxLag is how far the replica may fall behind its schedule, on a machine that is too slow,
// before it stops catching up.
const maxLag = time.Second

// Engine is one replica. Handler is safe for concurrent use, before, during and after Run.
type Engine struct {
	// Fixed after New.
	cfg         Config
	profile     cost.Profile // ranks and speed applied
	model       *model.Model
	fingerprint string
	created     time.Time
	handler     http.Handler
	metrics     *metrics
	transfer    *transfer // nil: no KV connector
	events      *kvEvents // nil: no KV events
	faults      atomic.Pointer[Faults]
	wake        chan struct{} // holds a token when the inbox is not empty
	done        chan struct{} // closed when Run returns

	mu     sync.Mutex
	phase  phase
	inbox  []*stream // submitted, not yet taken by the loop
	cancel []*stream // to be aborted
	calls  []*call   // to be run
	stats  batch.Stats
	pace   Pace
	died   bool          // stopped by an error of the core
	hung   chan struct{} // closed by Resume; nil while the core runs
	// legs are the requests by the leg names of their clients.
	legs map[string]*stream

	// Owned by the loop.
	due   time.Time         // end of the iteration in progress; zero between two
	now   time.Time         // generation time of the tokens being delivered
	table *blocktable.Table // nil: not served
}

// phase is the lifecycle phase of an Engine.
type phase int

const (
	fresh phase = iota
	serving
	stopped
)

// errStopped is returned to requests after Run, errFull when too many wait.
var (
	errStopped = errors.New("the engine has stopped")
	errFull    = errors.New("too many requests are waiting")
)

// New validates the config and returns a replica that does not run yet: requests wait until
// Run is called.
func New(c Config) (*Engine, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	if c.Vocabulary == nil {
		v, err := model.NewVocabulary()
		if err != nil {
			return nil, fmt.Errorf("emulator: %w", err)
		}
		c.Vocabulary = v
	}
	e := &Engine{
		cfg:     c,
		profile: c.Profile.TensorParallel(c.TensorParallel).Scale(c.Speed),
		model:   model.New(c.Model, c.Vocabulary),
		created: time.Now(),
		wake:    make(chan struct{}, 1),
		done:    make(chan struct{}),
		legs:    make(map[string]*stream),
	}
	// Like vLLM's, the fingerprint identifies the version and the configuration.
	e.fingerprint = fmt.Sprintf("vllm-%s-%08x", version, uint32(xxhash.Sum64String(fmt.Sprint(c.Model, c.layout(), c.TensorParallel))))
	e.faults.Store(&c.Faults)
	var err error
	if e.transfer, err = newTransfer(e); err != nil {
		return nil, fmt.Errorf("emulator: %w", err)
	}
	e.metrics = newMetrics(e)
	if e.events, err = newKVEvents(e); err != nil {
		return nil, fmt.Errorf("emulator: %w", err)
	}
	e.handler = e.routes()
	return e, nil
}

// Handler serves the replica's HTTP API. After Run it answers 503.
func (e *Engine) Handler() http.Handler { return e.handler }

// Run maps the KV pool and runs the replica until ctx ends, when it returns nil. It unmaps
// the pool before it returns. It may be called once.
func (e *Engine) Run(ctx context.Context) error {
	e.mu.Lock()
	if e.phase != fresh {
		e.mu.Unlock()
		return errors.New("emulator: Run was called twice")
	}
	e.phase = serving
	e.mu.Unlock()
	defer e.stop()

	pool, err := e.newPool()
	if err != nil {
		return fmt.Errorf("emulator %s: %w", e.cfg.Model, err)
	}
	config := batch.Config{
		Model: e.model, Pool: pool, Profile: e.profile,
		MaxBatch: e.cfg.MaxBatch, MaxTokens: e.cfg.MaxBatchedTokens, NoPrefixCache: e.cfg.NoPrefixCache,
	}
	if e.events != nil {
		config.Cache = e.events
	}
	s, err := batch.New(config)
	if err != nil {
		return errors.Join(fmt.Errorf("emulator %s: %w", e.cfg.Model, err), pool.Close())
	}
	e.cfg.Logger.Info("emulated replica runs", "model", e.cfg.Model, "profile", e.profile.Name, "kv_blocks", pool.Blocks, "speed", e.cfg.Speed)
	var port *kvport.Server // that shows the block table, or nil
	if e.cfg.Blocks != "" {
		if port, err = e.showTable(pool); err != nil {
			return errors.Join(fmt.Errorf("emulator %s: %w", e.cfg.Model, err), pool.Close())
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	if t := e.transfer; t != nil {
		t.group = group
		group.Go(func() error { return t.connector.Run(ctx) })
	}
	if e.events != nil {
		group.Go(func() error { return e.events.publisher.Run(ctx) })
	}
	group.Go(func() error {
		err := e.loop(ctx, s)
		if err != nil {
			e.mu.Lock()
			e.died = true
			e.mu.Unlock()
		}
		e.stop() // waiting callers must not wait longer than the loop runs
		return err
	})
	if port != nil {
		group.Go(func() error { return port.Run(ctx) })
	}
	if err := errors.Join(group.Wait(), pool.Close()); err != nil {
		return fmt.Errorf("emulator %s: %w", e.cfg.Model, err)
	}
	return nil
}

// showTable sets the block table, and returns what serves it.
func (e *Engine) showTable(pool *kv.Pool) (*kvport.Server, error) {
	var err error
	e.table, err = blocktable.New(blocktable.Config{Pool: pool, Engine: engineAdapter{e}, Context: e.cfg.Context, Root: e.cacheRoot})
	if err != nil {
		return nil, err
	}
	return kvport.New(kvport.Config{
		Dir: e.cfg.Blocks, Fingerprint: kvFingerprint(e.cfg), Table: e.table, Pool: pool, Logger: e.cfg.Logger,
		Describe: kvapi.Table{Model: e.cfg.Model, BlockTokens: e.cfg.BlockTokens, TokenBytes: int64(e.profile.KVBytesPerToken)},
	})
}

// newPool creates the KV pool.
func (e *Engine) newPool() (*kv.Pool, error) {
	if e.cfg.Device == nil {
		return kv.NewPool(e.cfg.layout())
	}
	m, err := e.cfg.Device(int64(e.cfg.layout().Bytes()))
	if err != nil {
		return nil, fmt.Errorf("KV pool: %w", err)
	}
	return kv.NewDevicePool(e.cfg.layout(), m)
}

// stop ends every request that the loop still has. Further calls do nothing.
func (e *Engine) stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.phase == stopped {
		return
	}
	e.phase = stopped
	e.inbox, e.cancel, e.calls = nil, nil, nil
	close(e.done)
}

// submit passes a request to the loop.
func (e *Engine) submit(st *stream) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.phase == stopped:
		return errStopped
	case len(e.inbox)+e.stats.Waiting >= maxWaiting:
		return errFull
	}
	e.inbox = append(e.inbox, st)
	e.poke()
	return nil
}

// abort makes the loop end a stream whose client is gone.
func (e *Engine) abort(st *stream) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.phase != stopped {
		e.cancel = append(e.cancel, st)
		e.poke()
	}
}

func (e *Engine) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}
