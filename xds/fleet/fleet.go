package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/ratelimitlog"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Config is the configuration of a Fleet.
type Config struct {
	Rules
	// Replicas is the configured list at start; see SetReplicas.
	Replicas []policies.Replica
	// Store holds the plan object. Required.
	Store store.Store
	// Counters keeps flows, weights and byte ratios across restarts; nil keeps
	// nothing.
	Counters Counters
	// Publisher shows the fleet to the proxies. Required.
	Publisher Publisher
	// Slots is told what policy slots should run, when that is known and whenever it
	// changes. It is called by Run, and must neither block nor change the list. nil:
	// nobody is.
	Slots func([]policyslots.Slot)
	// Proxies tells what proxies see of the replicas' load; nil: nothing.
	Proxies Proxies
	Logger  *slog.Logger // nil discards
}

// Publisher is shown every state of the fleet that differs in what proxies
// see. Publish must not block; the latest snapshot wins. It is called by one
// goroutine.
type Publisher interface{ Publish(*Snapshot) }

// Bounds of the loop.
const (
	// maxTick and minTick bound the time between two looks at the clock.
	maxTick = 250 * time.Millisecond
	minTick = 10 * time.Millisecond
	// saveEvery is the time between two writes of the counters.
	saveEvery = 10 * time.Second
	// storeTimeout bounds one write of the plan object.
	storeTimeout = 5 * time.Second
	// leaseTimeout bounds one that renews the lease: a later answer would come
	// when the lease is over.
	leaseTimeout = 2 * time.Second
	// resignTimeout bounds the last write of a control plane that ends.
	resignTimeout = time.Second
	// orderTries bounds how often an order is given again because another control
	// plane wrote at the same time, and newsTimeout the wait for what it wrote.
	orderTries  = 10
	newsTimeout = 3 * time.Second
)

// Fleet drives a State: it feeds it reports, replica lists and time, stores
// what it proposes and publishes what it shows. All methods may be called at
// any time from any goroutine.
type Fleet struct {
	cfg     Config
	log     *slog.Logger
	service *service
	events  chan message
	done    chan struct{} // closed when Run has returned
	latest  atomic.Pointer[Snapshot]

	mu       sync.Mutex
	replicas []policies.Replica // configured
	changed  chan struct{}      // capacity 1: replicas is news to the loop
	refused  []store.Refusal    // not yet taken in by the loop
	barred   chan struct{}      // capacity 1: refused is news to it
	moves    moveLog
	hosts    map[policies.ReplicaID]policyslots.Report // what each said of its policy slots last

	state   *State        // owned by Run
	version store.Version // of the plan object last read or written; owned by Run
	// untold are the versions that were written here and that the store's watch
	// has not told yet, oldest first; owned by Run.
	untold []store.Version
	news   <-chan store.Update  // the store's watch; owned by Run
	unsaid ratelimitlog.Limiter // for what cannot be written down
	slots  []policyslots.Slot   // that were told; owned by Run
	told   bool                 // they were; owned by Run
}

// message is an event on its way into the loop.
type message struct {
	event Event
	reply chan<- answer // for Reported and orders; capacity 1
}

type answer struct {
	reply *api.LoadReply
	err   error
}

// New checks the configuration. Nothing runs before Run.
func New(cfg Config) (*Fleet, error) {
	state, err := NewState(cfg.Rules)
	if err != nil {
		return nil, err
	}
	if cfg.Store == nil || cfg.Publisher == nil {
		return nil, errors.New("fleet: Store and Publisher must be given")
	}
	if err := Check(cfg.Models, cfg.Replicas); err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	if cfg.Counters == nil {
		cfg.Counters = File{}
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	f := &Fleet{
		cfg: cfg, log: log, state: state,
		events: make(chan message), done: make(chan struct{}),
		hosts:    make(map[policies.ReplicaID]policyslots.Report),
		replicas: cfg.Replicas, changed: make(chan struct{}, 1), barred: make(chan struct{}, 1),
	}
	f.service = &service{fleet: f, streams: make(map[policies.ReplicaID]*session)}
	return f, nil
}

// Service is the gRPC service that fronts report to.
func (f *Fleet) Service() api.FleetServer { return f.service }

// SetReplicas replaces the configured list: who is new joins once its engine
// is ready, who is missing leaves, who is marked Draining drains. A list that
// Check refuses changes nothing.
func (f *Fleet) SetReplicas(list []policies.Replica) error {
	if err := Check(f.cfg.Models, list); err != nil {
		return fmt.Errorf("fleet: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replicas = append([]policies.Replica(nil), list...)
	select {
	case f.changed <- struct{}{}:
	default:
	}
	return nil
}

// Reports counts the load reports that were taken in and the streams that were
// ended because a report was refused.
func (f *Fleet) Reports() (taken, refused uint64) {
	return f.service.taken.Load(), f.service.refused.Load()
}

// Moves returns up to limit moves that were told after since, the newest first.
// A fleet remembers the last 512.
func (f *Fleet) Moves(since time.Time, limit int) []Move {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.moves.newest(since, limit)
}

// MoveTotals sums the moves that have ended since the program started, in a
// fixed order, and counts those that are going on: not ended, and told of
// within the last minute.
func (f *Fleet) MoveTotals(now time.Time) (ended []MoveTotal, running int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.moves.sums(), f.moves.running(now.Add(-time.Minute))
}

// configured is the list that the last SetReplicas gave.
func (f *Fleet) configured() []policies.Replica {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.replicas
}

// Snapshot returns a recent state of the fleet, at most a quarter of a second
// old while Run runs; nil before it has begun.
func (f *Fleet) Snapshot() *Snapshot { return f.latest.Load() }

// BytesPerToken is what is served for a model; 0 for one that is not known.
func (f *Fleet) BytesPerToken(model string) length.Ratio {
	if s := f.latest.Load(); s != nil {
		if m := s.Model(model); m != nil {
			return m.BytesPerToken
		}
	}
	for _, m := range f.state.rules.Models { // fixed after New
		if m.Name == model {
			return m.BytesPerToken
		}
	}
	return 0
}

// report hands a report to the loop and waits for what to answer.
func (f *Fleet) report(ctx context.Context, r Report) (*api.LoadReply, error) {
	reply := make(chan answer, 1)
	if err := f.send(ctx, message{Reported{r}, reply}); err != nil {
		return nil, err
	}
	select {
	case a := <-reply:
		return a.reply, a.err
	case <-f.done:
		return nil, errStopped
	}
}

var errStopped = status.Error(codes.Unavailable, "the control plane stops")

// send hands a message to the loop.
func (f *Fleet) send(ctx context.Context, m message) error {
	select {
	case f.events <- m:
		return nil
	case <-f.done:
		return errStopped
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}
