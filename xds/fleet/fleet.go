package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/internal/wakeup"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/internal/reports"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Config is the configuration of a Fleet.
type Config struct {
	Rules
	// Replicas is the configured list at start; see SetReplicas.
	Replicas []policies.Replica
	// Store holds the plan object. Required.
	Store store.Plans
	// Counters keeps flows, weights and byte ratios across restarts; nil keeps
	// nothing.
	Counters Counters
	// Publisher publishes the fleet to the proxies. Required.
	Publisher Publisher
	// OnSlots is called by Run with the desired state of the policy slots, once it is
	// known and whenever it changes. It must neither block nor change the list. nil:
	// not called.
	OnSlots func([]policyslots.Slot)
	// OnPlan is called by Run for each decision that this control plane has stored and that replaced a
	// model's plan, refinements excepted: they move a boundary every few seconds. It must not block. nil: not called.
	OnPlan func(fleetstate.Change)
	// Proxies returns the load of the replicas as proxies see it; nil: unknown.
	Proxies Proxies
	Logger  *slog.Logger // nil discards
}

// Publisher receives every state of the fleet in which something that proxies see has
// changed. Publish must not block; the latest snapshot wins. It is called by one
// goroutine.
type Publisher interface{ Publish(*Snapshot) }

// Bounds of the loop.
const (
	// maxTick and minTick bound the time between two ticks.
	maxTick = 250 * time.Millisecond
	minTick = 10 * time.Millisecond
	// saveInterval is the time between two writes of the counters.
	saveInterval = 10 * time.Second
	// storeTimeout bounds one write of the plan object.
	storeTimeout = 3 * time.Second
	// leaseTimeout bounds a write that renews the lease: a later answer would arrive
	// after the lease has expired.
	leaseTimeout = 2 * time.Second
	// stepDownTimeout bounds the last write of a control plane that ends.
	stepDownTimeout = time.Second
	// orderTries bounds how often an order is retried because another control plane
	// wrote at the same time, and updateTimeout the wait for that write to arrive.
	orderTries    = 10
	updateTimeout = 3 * time.Second
	// maxQueued bounds the messages that are handled before a tick.
	maxQueued = 20_000
	// maxOrders bounds the orders that wait for the store.
	maxOrders = 64
	// migrationTimeout is how long a migration that has not ended counts as running
	// after its last report.
	migrationTimeout = time.Minute
)

// Fleet drives a State: it feeds it reports, replica lists and time, stores
// what it proposes and publishes its snapshots. All methods may be called at
// any time from any goroutine.
type Fleet struct {
	cfg     Config
	log     *slog.Logger
	service *reports.Service
	events  chan message
	done    chan struct{} // closed when Run has returned
	latest  atomic.Pointer[Snapshot]

	mu              sync.Mutex
	replicas        []policies.Replica // configured
	replicasChanged chan struct{}      // capacity 1: the loop has not applied replicas yet
	migrations      fleetstate.MigrationLog
	slotReports     map[policies.ReplicaID]policyslots.Report // the last of each replica
	storeFaults     map[StoreOperation]StoreFault             // what fails

	// Owned by Run.
	state   *State
	version store.Version    // of the plan object last read or written
	writing *storeWrite      // nil: no proposal is being stored
	written chan writeResult // capacity 1: the answer to writing
	planned chan struct{}    // capacity 1: the present planning has run
	orders  []*pendingOrder  // in their order; the first one may be in writing
	// unconfirmed are the versions that were written here and that the store's watch
	// has not delivered yet, oldest first.
	unconfirmed    []store.Version
	updates        <-chan store.Update // the store's watch; nil: it has ended
	heldLogged     string              // the digest of the held list that was logged last
	slots          []policyslots.Slot  // the last argument of OnSlots
	slotsAnnounced bool                // OnSlots was called
}

// message is an event on its way into the loop.
type message struct {
	event Event
	reply chan<- answer // for Reported and Ordered; capacity 1
}

type answer struct {
	reply loadreport.Reply
	err   error
}

// New checks the configuration. Nothing runs before Run.
func New(cfg Config) (*Fleet, error) {
	state, err := NewState(cfg.Rules)
	if err != nil {
		return nil, err
	}
	if cfg.Store == nil || cfg.Publisher == nil {
		return nil, errors.New("fleet: Store and Publisher are required")
	}
	if err := CheckReplicas(cfg.Models, cfg.Replicas); err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	if cfg.Counters == nil {
		cfg.Counters = noCounters{}
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	f := &Fleet{
		cfg: cfg, log: log, state: state,
		events: make(chan message), done: make(chan struct{}),
		written: make(chan writeResult, 1), planned: make(chan struct{}, 1), storeFaults: make(map[StoreOperation]StoreFault),
		slotReports: make(map[policies.ReplicaID]policyslots.Report),
		replicas:    cfg.Replicas, replicasChanged: make(chan struct{}, 1),
	}
	f.service = reports.New(f, log)
	return f, nil
}

// Service is the gRPC service that migrators report to.
func (f *Fleet) Service() api.FleetServer { return f.service }

// SetReplicas replaces the configured list: new replicas join once their engines are
// ready, missing ones leave, those marked Draining drain. A list that CheckReplicas
// refuses changes nothing, and one that lacks more than half of a model's replicas waits
// until an operator confirms it; see HeldRemoval.
func (f *Fleet) SetReplicas(list []policies.Replica) error {
	if err := CheckReplicas(f.cfg.Models, list); err != nil {
		return fmt.Errorf("fleet: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replicas = append([]policies.Replica(nil), list...)
	wakeup.Send(f.replicasChanged)
	return nil
}

// ReportCounts returns how many load reports were accepted, and how many streams
// were ended because a report was refused.
func (f *Fleet) ReportCounts() (accepted, refused uint64) { return f.service.Counts() }

// Migrations returns up to limit migrations that were last reported after since, the
// newest first. A fleet keeps the last 512.
func (f *Fleet) Migrations(since time.Time, limit int) []loadreport.Migration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.migrations.Newest(since, limit)
}

// MigrationTotals sums the migrations that have ended since the program started,
// sorted by kind, and counts the running ones: not ended, and reported within the
// last minute.
func (f *Fleet) MigrationTotals(now time.Time) (ended []fleetstate.MigrationTotal, running int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.migrations.Totals(), f.migrations.Running(now.Add(-migrationTimeout))
}

// configuredReplicas returns the list of the last SetReplicas.
func (f *Fleet) configuredReplicas() []policies.Replica {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.replicas
}

// Snapshot returns a recent state of the fleet, at most a quarter of a second
// old while Run runs; nil before it has begun.
func (f *Fleet) Snapshot() *Snapshot { return f.latest.Load() }

// BytesPerToken returns the ratio that is served for a model; 0 for an unknown one.
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

// HandleReport implements reports.Handler: it hands a report to the loop and
// waits for the reply.
func (f *Fleet) HandleReport(ctx context.Context, r loadreport.Report) (loadreport.Reply, error) {
	return f.ask(ctx, Reported{r})
}

// HandleClosed implements reports.Handler.
func (f *Fleet) HandleClosed(replica policies.ReplicaID) {
	_ = f.send(context.Background(), message{event: StreamClosed{replica}}) // fails only when the fleet stops
}

// Done implements reports.Handler: it is closed when Run has returned.
func (f *Fleet) Done() <-chan struct{} { return f.done }

// ask hands an event to the loop and waits for its reply.
func (f *Fleet) ask(ctx context.Context, ev Event) (loadreport.Reply, error) {
	reply := make(chan answer, 1)
	if err := f.send(ctx, message{ev, reply}); err != nil {
		return loadreport.Reply{}, err
	}
	select {
	case a := <-reply:
		return a.reply, a.err
	case <-f.done:
		return loadreport.Reply{}, reports.ErrStopped
	}
}

// send hands a message to the loop.
func (f *Fleet) send(ctx context.Context, m message) error {
	select {
	case f.events <- m:
		return nil
	case <-f.done:
		return reports.ErrStopped
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}
