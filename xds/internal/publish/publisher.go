package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/internal/planrollout"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Cache applies the sets: package cache implements it. It is called by one
// goroutine.
type Cache interface {
	// Set applies a set to the nodes of a group, and with the group "" to all
	// nodes whose group has no set of its own. It does not wait for the nodes.
	Set(group string, set resources.Set)
	// Unanswered adds to ids the nodes that still owe a reply to a response with
	// one of the types, including a response that is not sent yet. After Set, a
	// node is among them unless it already has the set's resources of the types.
	Unanswered(types []string, ids map[string]bool)
	// Changed is signalled after nodes have replied.
	Changed() <-chan struct{}
}

// Monitor watches the error rates and iteration times of a group's nodes under
// a new plan. It is called a few times per second and must not block.
type Monitor interface {
	// Regression reports whether and what got worse since the plan settled in
	// the group.
	Regression(group string, since time.Time) (bad bool, why string)
}

// RequestCounter counts requests in the proxies. It is called a few times per
// second and must not block.
type RequestCounter interface {
	// ActiveRequests returns the requests that run on some addresses of a
	// cluster. known is false if no proxy reports them.
	ActiveRequests(cluster string, addresses []string) (requests int, known bool)
}

// Config is the configuration of a Publisher.
type Config struct {
	Cache  Cache   // required
	Ledger *Ledger // required, and used by this publisher alone
	// Groups are the groups of nodes in the order of the rollout. The Cache
	// must use the same. nil is one group for all.
	Groups *resources.Groups
	// Counts reports whether a node counts, because it is known to be a proxy of the
	// fleet. What other nodes refuse is shown and has no other effect, and a phase waits
	// for all of them for one AckTimeout at most. It must be pure. nil: every node.
	Counts func(node string) bool
	// Watch is how long a new plan is on trial in one group before the next
	// populated group gets it. With one populated group there is no trial. 0
	// continues as soon as the plan is acknowledged.
	Watch time.Duration
	// Monitor can end a trial early, which rolls the plan back. nil: only NACKs
	// do.
	Monitor Monitor
	// AckTimeout is how long a phase waits for a node, which then is fenced. It
	// should exceed the time in which a proxy connects and warms. A newer snapshot
	// restarts the timeout of a node that had caught up; a phase never exceeds
	// three timeouts. 0 means 3 s.
	AckTimeout time.Duration
	// With a RequestCounter, removed endpoints stay, draining, until they have no
	// request or DrainTimeout is over. nil removes them at once.
	RequestCounter RequestCounter
	DrainTimeout   time.Duration // 0 means 30 s
	// OnRefusal, unless it is nil, is called after each plan that was rolled back because
	// nodes refused it. It must not block.
	OnRefusal func(Refusal)
	Logger    *slog.Logger // nil discards
}

// Refusal is a plan that nodes refused.
type Refusal = planrollout.Refusal

const (
	defaultAckTimeout   = 3 * time.Second
	defaultDrainTimeout = 30 * time.Second
	// maxEpochs is how many epochs back the versions of route tables are known.
	maxEpochs = 16
)

// validate returns the configuration with its defaults.
func (c Config) validate() (Config, error) {
	switch {
	case c.Cache == nil || c.Ledger == nil:
		return c, errors.New("publish: Cache and Ledger are required")
	case c.AckTimeout < 0 || c.Watch < 0 || c.DrainTimeout < 0:
		return c, fmt.Errorf("publish: ack timeout %v, watch %v, drain timeout %v: must not be negative", c.AckTimeout, c.Watch, c.DrainTimeout)
	}
	if c.AckTimeout == 0 {
		c.AckTimeout = defaultAckTimeout
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = defaultDrainTimeout
	}
	if c.RequestCounter == nil {
		c.DrainTimeout = 0
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

func (c Config) rollout() planrollout.Config {
	return planrollout.Config{Groups: c.Groups.Names(), Watch: c.Watch, AckTimeout: c.AckTimeout, DrainTimeout: c.DrainTimeout}
}

// Publisher rolls out the latest submitted view, group after group. Submit and Status
// may be called by any goroutine; Run by one.
type Publisher struct {
	cfg    Config
	wakeup chan struct{} // capacity 1: submitted is set

	mu        sync.Mutex
	submitted *resources.View // not taken by Run yet
	state     state

	buildSnapshot func(resources.View) (*planrollout.Snapshot, error) // renders and proves a view
	rollout       *planrollout.Rollout
	target        *planrollout.Snapshot // the last one
	timer         *time.Timer
}

// state is what Status returns.
type state struct {
	report   planrollout.Report
	refusals []Refusal
	err      error                     // why the last view is not a snapshot
	epochs   map[string]policies.Epoch // of the applied route tables, by version
}

// New checks the configuration. Nothing is applied before Run.
func New(cfg Config) (*Publisher, error) {
	cfg, err := cfg.validate()
	if err != nil {
		return nil, err
	}
	prover := new(resources.Prover) // used by Run alone, so that it caches what a snapshot and the steps towards it share
	p := &Publisher{cfg: cfg, wakeup: make(chan struct{}, 1)}
	p.buildSnapshot = func(v resources.View) (*planrollout.Snapshot, error) { return planrollout.NewSnapshot(v, prover.Prove) }
	steps := cfg.rollout()
	steps.Prove = prover.Prove
	if p.rollout, err = planrollout.New(steps); err != nil {
		return nil, fmt.Errorf("publish: %w", err)
	}
	cfg.Ledger.classify(cfg.Groups.GroupOf, cfg.Counts)
	p.state.report = p.rollout.Report()
	return p, nil
}

// Submit requests that a view be rolled out. It never blocks; if views are
// submitted faster than they can be rolled out, the last one counts. A view that
// cannot be rendered or proven is logged and reported by Status, and the present
// one stays. The caller must not change the view afterwards.
func (p *Publisher) Submit(v resources.View) {
	p.mu.Lock()
	p.submitted = &v
	p.mu.Unlock()
	select {
	case p.wakeup <- struct{}{}:
	default:
	}
}

// Run publishes until the context ends. The sets then stay applied.
func (p *Publisher) Run(ctx context.Context) error {
	p.timer = time.NewTimer(time.Hour)
	defer p.timer.Stop()
	p.timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.wakeup:
			p.applySubmitted()
		case <-p.cfg.Ledger.Changed():
			p.observeNodes()
		case <-p.cfg.Cache.Changed():
			p.observeNodes()
		case <-p.timer.C:
			p.observeNodes()
		}
	}
}

// observeNodes passes the NACKs and the state of the nodes to the rollout.
func (p *Publisher) observeNodes() {
	for _, r := range p.cfg.Ledger.takeNACKs() {
		p.step(r)
	}
	p.step(p.observe())
}

// applySubmitted passes the submitted view to the rollout.
func (p *Publisher) applySubmitted() {
	p.mu.Lock()
	v := p.submitted
	p.submitted = nil
	p.mu.Unlock()
	if v == nil {
		return
	}
	t, err := p.buildSnapshot(*v)
	p.mu.Lock()
	p.state.err = err
	p.mu.Unlock()
	if err != nil {
		p.cfg.Logger.Error("view not published", "error", err)
		return
	}
	if p.target != nil && p.target.Set.Equal(t.Set) {
		return
	}
	p.target = t
	p.observeNodes() // a node that has caught up by now starts with a fresh timeout
	p.step(planrollout.SetTarget{Snapshot: t})
}

// rememberRoutes keeps the versions of a set's route tables, so that Status knows the epochs of
// nodes.
func (p *Publisher) rememberRoutes(s planrollout.Apply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	epochs := maps.Clone(p.state.epochs)
	if epochs == nil {
		epochs = make(map[string]policies.Epoch)
	}
	maps.DeleteFunc(epochs, func(_ string, e policies.Epoch) bool { return e+maxEpochs < s.Epoch })
	for _, r := range s.Set.All(resources.RouteType) {
		epochs[r.Version] = s.Epoch
	}
	p.state.epochs = epochs
}

// step passes an event to the rollout and executes its output, as long as the
// rollout requests another observation.
func (p *Publisher) step(e planrollout.Event) {
	for {
		out := p.rollout.Step(time.Now(), e)
		for _, n := range out.Notes {
			p.logNote(n)
		}
		for _, s := range out.Applies {
			p.rememberRoutes(s)
			p.cfg.Cache.Set(s.Group, s.Set)
			p.cfg.Logger.Debug("resources applied", "group", s.Group, "epoch", uint64(s.Epoch), "phase", s.Phase.String())
		}
		p.mu.Lock()
		p.state.report, p.state.refusals = p.rollout.Report(), p.rollout.Refusals()
		p.mu.Unlock()
		for _, r := range out.Refused {
			if p.cfg.OnRefusal != nil {
				p.cfg.OnRefusal(r)
			}
		}
		if !out.ObserveNow {
			p.setTimer(out.Wake)
			return
		}
		e = p.observe()
	}
}

// observe answers the rollout's queries.
func (p *Publisher) observe() planrollout.Observe {
	needs := p.rollout.Queries()
	facts := p.cfg.Ledger.observe(needs, func(types []string) map[string]bool {
		// The cache knows which responses are on their way: a node may have
		// acknowledged the versions that are applied now, and still be about to
		// receive others.
		ids := make(map[string]bool)
		p.cfg.Cache.Unanswered(types, ids)
		return ids
	})
	for _, n := range needs {
		f := facts[n.Group]
		if p.cfg.Monitor != nil && !n.TrialSince.IsZero() {
			if bad, why := p.cfg.Monitor.Regression(n.Group, n.TrialSince); bad {
				f.Regression = sanitize(why, maxErrorText)
			}
		}
		f.Requests, f.RequestsKnown = p.countRequests(n.Removed)
		facts[n.Group] = f
	}
	return planrollout.Observe{Groups: facts}
}

// countRequests sums the requests on endpoints over the clusters that can reach
// them. known is false if none of them is counted.
func (p *Publisher) countRequests(endpoints []resources.Endpoint) (requests int, known bool) {
	if p.cfg.RequestCounter == nil {
		return 0, false
	}
	byModel := make(map[string][]string)
	for _, e := range endpoints {
		byModel[e.Model] = append(byModel[e.Model], e.Address)
	}
	for model, addresses := range byModel {
		for k := range policies.MaxStages {
			n, ok := p.cfg.RequestCounter.ActiveRequests(resources.ClusterName(model, k), addresses)
			if ok {
				requests, known = requests+n, true
			}
		}
	}
	return requests, known
}

// logNote logs a transition.
func (p *Publisher) logNote(n planrollout.Note) {
	level := slog.LevelInfo
	if n.Warn {
		level = slog.LevelWarn
	}
	attrs := make([]slog.Attr, 0, 4)
	if n.Group != "" {
		attrs = append(attrs, slog.String("group", n.Group))
	}
	if n.Node != "" {
		attrs = append(attrs, slog.String("node", n.Node))
	}
	if n.Epoch != 0 {
		attrs = append(attrs, slog.Uint64("epoch", uint64(n.Epoch)))
	}
	if n.Why != "" {
		attrs = append(attrs, slog.String("reason", n.Why))
	}
	p.cfg.Logger.LogAttrs(context.Background(), level, n.Text, attrs...)
}

// setTimer sets or stops the timer.
func (p *Publisher) setTimer(at time.Time) {
	if at.IsZero() {
		p.timer.Stop()
		return
	}
	p.timer.Reset(max(time.Until(at), time.Millisecond))
}
