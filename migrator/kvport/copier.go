package kvport

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// Timeouts and limits.
const (
	defaultConcurrent = 4
	engineTimeout     = 3 * time.Second  // for one call to the engine
	serveTimeout      = 30 * time.Second // for which a prefix is kept for a peer
)

// Why a prefix is not pulled.
var (
	ErrBusy     = errors.New("the limit of prefixes that are copied at a time is reached")
	ErrGone     = errors.New("the holder has no more of the prefix than this replica")
	ErrNoMemory = errors.New("no KV can be copied into the engine's memory now")
	// ErrDifferent is returned where the holder's engine stores KV differently.
	ErrDifferent = errors.New("the two engines store KV differently")
)

// Engine pins prefixes in the cache of an engine that serves its block table; Client implements it.
type Engine interface {
	transport.Pool
	// Description returns false while the engine is unavailable.
	Description() (Description, bool)
	PinPrefix(ctx context.Context, id string, p Prefix, reserve bool) (PinnedPrefix, error)
	CommitPrefix(ctx context.Context, id string, tokens int) error
	Release(ctx context.Context, id string) error
	// AbandonSession ends the session, which releases everything. It does not block.
	AbandonSession(why error)
}

var _ Engine = (*Client)(nil)

// PrefixNetwork reaches the other migrators; migrator/peer implements it.
type PrefixNetwork interface {
	// FetchPrefix asks a peer for a prefix, which the peer keeps until ctx ends.
	FetchPrefix(ctx context.Context, to policies.ReplicaID, q *api.FetchPrefixRequest) (*api.FetchPrefixAnswer, error)
}

// CopierConfig configures a Copier. Engine, Network and Paths are required.
type CopierConfig struct {
	Engine  Engine
	Network PrefixNetwork
	// Paths are those of the transports that serve the Engine's memory.
	Paths *transport.Paths
	// CanReceive reports whether KV can be written to the engine's memory now. It must not block.
	// nil: it always can.
	CanReceive func() bool
	// MaxConcurrent bounds the prefixes that are pulled at a time, and those that are served. 0
	// means 4.
	MaxConcurrent int
	// Tracer creates a span for each prefix that a peer asks for, below the peer's; nil creates none.
	Tracer trace.Tracer
	// Logger logs releases that fail; nil discards.
	Logger *slog.Logger
}

// Copier copies prefixes to and from one engine. Its methods are safe for concurrent use. They copy
// nothing before Run and after it.
type Copier struct {
	cfg              CopierConfig
	log              *slog.Logger
	pulling, serving chan struct{} // one token for each

	mu      sync.Mutex
	ctx     context.Context // Run's; nil while it does not run
	workers sync.WaitGroup  // added to under mu, while ctx is set
	served  Served
}

// Served counts the prefixes that peers have asked for, since New.
type Served struct {
	Prefixes uint64 // that were offered to a peer
	Tokens   uint64 // of these
	Refused  uint64 // calls without an offer
}

// NewCopier returns a Copier that copies nothing before Run.
func NewCopier(c CopierConfig) (*Copier, error) {
	if c.Engine == nil || c.Network == nil || c.Paths == nil {
		return nil, errors.New("prefix pull: Engine, Network and Paths are required")
	}
	if c.MaxConcurrent == 0 {
		c.MaxConcurrent = defaultConcurrent
	}
	if c.CanReceive == nil {
		c.CanReceive = func() bool { return true }
	}
	if c.Tracer == nil {
		c.Tracer = noop.NewTracerProvider().Tracer("")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Copier{cfg: c, log: c.Logger, pulling: make(chan struct{}, c.MaxConcurrent), serving: make(chan struct{}, c.MaxConcurrent)}, nil
}

// Run lets prefixes be copied until ctx ends; it returns when the last copy has ended. It may be
// called once.
func (c *Copier) Run(ctx context.Context) error {
	c.mu.Lock()
	c.ctx = ctx
	c.mu.Unlock()
	<-ctx.Done()
	c.mu.Lock()
	c.ctx = nil
	c.mu.Unlock()
	c.workers.Wait()
	return nil
}

// Served returns the counters.
func (c *Copier) Served() Served {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.served
}

// begin runs work on a goroutine that Run waits for, in one of some places. It returns ErrBusy if none is free, and
// ErrNoMemory while Run does not run.
func (c *Copier) begin(places chan struct{}, work func(run context.Context)) error {
	select {
	case places <- struct{}{}:
	default:
		return ErrBusy
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	run := c.ctx
	if run == nil {
		<-places
		return ErrNoMemory
	}
	c.workers.Go(func() {
		defer func() { <-places }()
		work(run)
	})
	return nil
}

// reservationName returns a name that no other reservation of the engine has.
func reservationName() string { return "prefix-pull/" + strconv.FormatUint(rand.Uint64(), 16) }

// pin pins a prefix under the name of a reservation. It ends with run, not with the request: a pin that
// was cancelled on its way might be made after the reservation's release. late reports that the engine
// has not answered, and may make it yet.
func (c *Copier) pin(run context.Context, name string, p Prefix, reserve bool) (pinned PinnedPrefix, late bool, err error) {
	ctx, cancel := context.WithTimeout(run, engineTimeout)
	defer cancel()
	pinned, err = c.cfg.Engine.PinPrefix(ctx, name, p, reserve)
	return pinned, errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled), err
}

// release frees a reservation, whether or not the engine has made it. One that is late is released once
// more when the engine had time to make it.
func (c *Copier) release(run context.Context, name string, late bool) {
	free := func(ctx context.Context) error { return c.cfg.Engine.Release(ctx, name) }
	Insist(run, c.log, "release", name, free, c.cfg.Engine.AbandonSession)
	if !late {
		return
	}
	select {
	case <-run.Done(): // the session ends
	case <-time.After(engineTimeout):
		Insist(run, c.log, "release", name, free, c.cfg.Engine.AbandonSession)
	}
}
