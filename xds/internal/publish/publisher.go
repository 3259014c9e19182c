package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/internal/rollout"
	"github.com/cascadeinfer/cascade/xds/nodegroup"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Cache is where sets are shown: package cache. It is called by one
// goroutine.
type Cache interface {
	// Set shows a set to the nodes of a group, and with the group "" to all
	// whose group has none of its own, and does not wait for any.
	Set(group string, set resources.Set)
	// Unanswered adds the ids of nodes to ids that were told something of the
	// types, or will be without another Set, and have not replied. From Set
	// on, a node is among them or has nothing of the types on its way.
	Unanswered(types []string, ids map[string]bool)
	// Changed is signalled after nodes have replied.
	Changed() <-chan struct{}
}

// Monitor tells how the nodes of a group fare under a new plan: errors, iteration
// time. It is asked a few times per second and must not block.
type Monitor interface {
	// Regression reports whether something became worse since the plan settled in the
	// group, and what.
	Regression(group string, since time.Time) (bad bool, why string)
}

// RequestCounter counts requests in the proxies. It is asked a few times per second
// and must not block.
type RequestCounter interface {
	// ActiveRequests returns the requests that run on some addresses of a cluster;
	// known is false where nobody counts them.
	ActiveRequests(cluster string, addresses []string) (requests int, known bool)
}

// Config is the configuration of a Publisher.
type Config struct {
	Cache  Cache   // required
	Ledger *Ledger // what nodes acknowledge; required, and of this publisher alone
	// Groups are the groups of nodes in the order of roll-out. The Target must
	// sort nodes by the same. nil is one group for all.
	Groups *nodegroup.List
	// Watch is how long a new plan is on trial in one group before the next one
	// that has nodes gets it; with a single such group nobody waits. 0 goes on as
	// soon as it is acknowledged.
	Watch time.Duration
	// Monitor can end a trial early, and takes the plan back. nil: only what nodes
	// refuse does.
	Monitor Monitor
	// AckTimeout is how long a phase waits for a node, which then is fenced. It
	// should exceed the time in which a proxy connects and warms. A node that
	// caught up and is shown a newer table within the phase has a bound of its
	// own, up to three for the phase. 0 means 3 s.
	AckTimeout time.Duration
	// RequestCounter keeps removed endpoints, draining, until they have no request or
	// RetireBound is over. nil removes them at once.
	RequestCounter RequestCounter
	DrainTimeout   time.Duration // 0 means 30 s
	// OnRefusal is told what nodes refuse, once per version, for other servers. It
	// is called by Run and holds it up. nil: nobody is told.
	OnRefusal func([]Refusal)
	Logger    *slog.Logger // nil discards
}

// Refusal is a version of a resource that a node refused.
type Refusal = rollout.Refusal

const (
	defaultAckTimeout   = 3 * time.Second
	defaultDrainTimeout = 30 * time.Second
	// maxTables is how many tables are kept to tell which one a node has.
	maxTables = 16
)

// validate completes a configuration.
func (c Config) validate() (Config, error) {
	switch {
	case c.Cache == nil || c.Ledger == nil:
		return c, errors.New("publish: Target and Ledger must be given")
	case c.AckTimeout < 0 || c.Watch < 0 || c.DrainTimeout < 0:
		return c, fmt.Errorf("publish: bound %v, watch %v, retire bound %v: must not be negative", c.AckTimeout, c.Watch, c.DrainTimeout)
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

func (c Config) rollout() rollout.Config {
	return rollout.Config{Groups: c.Groups.Names(), Watch: c.Watch, AckTimeout: c.AckTimeout, DrainTimeout: c.DrainTimeout}
}

// Publisher shows the latest submitted view, group after group. Submit, Bar,
// Refused and Status may be called by any goroutine; Run by one.
type Publisher struct {
	cfg    Config
	wakeup chan struct{} // capacity 1: submitted or barred is set

	mu          sync.Mutex
	submitted   *resources.View // not taken by Run yet
	quarantined []Refusal       // not taken by Run yet
	state       state

	// Owned by Run.
	buildTable func(resources.View) (*rollout.Table, error) // rendered and proven
	rollout    *rollout.Rollout
	target     *rollout.Table // the last one
	timer      *time.Timer
}

// state is what Status tells.
type state struct {
	report   rollout.Report
	refusals []Refusal
	err      error            // why the last view is not a table
	tables   []*rollout.Table // the last ones wanted, oldest first
}

// New checks the configuration. Nothing is shown before Run.
func New(cfg Config) (*Publisher, error) {
	cfg, err := cfg.validate()
	if err != nil {
		return nil, err
	}
	prover := new(resources.Prover) // Run's: a table and the steps towards it have most in common
	p := &Publisher{cfg: cfg, wakeup: make(chan struct{}, 1)}
	p.buildTable = func(v resources.View) (*rollout.Table, error) { return rollout.NewTable(v, prover.Prove) }
	steps := cfg.rollout()
	steps.Prove = prover.Prove
	if p.rollout, err = rollout.New(steps); err != nil {
		return nil, fmt.Errorf("publish: %w", err)
	}
	cfg.Ledger.assignGroups(cfg.Groups.GroupOf)
	p.state.report = p.rollout.Report()
	return p, nil
}

// Submit asks for a view to be shown. It never blocks; of several views that
// come faster than they can be shown the last one is. A view that cannot be
// rendered or proven is logged and told by Status, and what is shown stays.
// The caller must not change the view afterwards.
func (p *Publisher) Submit(v resources.View) {
	p.mu.Lock()
	p.submitted = &v
	p.mu.Unlock()
	p.wake()
}

// Quarantine says that nodes of other servers have refused these versions: no node of
// this one is sent them from now on. It never blocks.
func (p *Publisher) Quarantine(list []Refusal) {
	p.mu.Lock()
	p.quarantined = append(p.quarantined, list...)
	p.mu.Unlock()
	p.wake()
}

func (p *Publisher) wake() {
	select {
	case p.wakeup <- struct{}{}:
	default:
	}
}

// Quarantined lists the versions that are quarantined, oldest first: those that this
// server's nodes refused and those of Bar. There are at most 1,024.
func (p *Publisher) Quarantined() []Refusal {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.state.refusals)
}

// Run publishes until the context ends. What is shown then stays shown.
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

// observeNodes finds out what the nodes have and have refused.
func (p *Publisher) observeNodes() {
	for _, r := range p.cfg.Ledger.takeNACKs() {
		p.step(r)
	}
	p.step(p.observe())
}

// applySubmitted begins to show what was submitted, and ends to show what was barred.
func (p *Publisher) applySubmitted() {
	p.mu.Lock()
	v, barred := p.submitted, p.quarantined
	p.submitted, p.quarantined = nil, nil
	p.mu.Unlock()
	if len(barred) > 0 {
		p.step(rollout.Quarantine{Refusals: barred})
	}
	if v == nil {
		return
	}
	t, err := p.buildTable(*v)
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
	p.rememberTable(t)
	p.observeNodes() // who has caught up by now is not late since before
	p.step(rollout.SetTarget{Table: t})
}

// rememberTable keeps a table, so that Status can tell who has it.
func (p *Publisher) rememberTable(t *rollout.Table) {
	p.target = t
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.state.tables); n > 0 && p.state.tables[n-1].Set.Equal(t.Set, resources.RouteType) {
		p.state.tables[n-1] = t
		return
	}
	p.state.tables = append(p.state.tables, t)
	p.state.tables = p.state.tables[max(0, len(p.state.tables)-maxTables):]
}

// step drives the rollout by an event, and on as long as it moves.
func (p *Publisher) step(e rollout.Event) {
	for {
		out := p.rollout.Step(time.Now(), e)
		for _, n := range out.Notes {
			p.logNote(n)
		}
		for _, s := range out.Applies {
			p.cfg.Cache.Set(s.Group, s.Set)
			p.cfg.Logger.Debug("resources shown", "group", s.Group, "epoch", uint64(s.Epoch), "phase", s.Phase.String())
		}
		p.mu.Lock()
		p.state.report, p.state.refusals = p.rollout.Report(), p.rollout.Refusals()
		p.mu.Unlock()
		if len(out.Refused) > 0 && p.cfg.OnRefusal != nil {
			p.cfg.OnRefusal(out.Refused)
		}
		if !out.ObserveNow {
			p.setTimer(out.Wake)
			return
		}
		e = p.observe()
	}
}

// observe asks the ledger and the others what the rollout needs to know.
func (p *Publisher) observe() rollout.Observe {
	needs := p.rollout.Queries()
	facts := p.cfg.Ledger.observe(needs, func(types []string) map[string]bool {
		// The cache knows what is on its way: what a node acknowledged before
		// can be what is shown now, and yet not last.
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
		if len(n.Removed) > 0 {
			f.Requests, f.RequestsKnown = p.countRequests(n.Removed)
		}
		facts[n.Group] = f
	}
	return rollout.Observe{Groups: facts}
}

// countRequests sums the requests on endpoints over the clusters that can reach them;
// known is false when nobody counts in any of them.
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

// logNote tells an operator of a transition.
func (p *Publisher) logNote(n rollout.Note) {
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
		attrs = append(attrs, slog.String("why", n.Why))
	}
	p.cfg.Logger.LogAttrs(context.Background(), level, n.Text, attrs...)
}

// setTimer sets the timer.
func (p *Publisher) setTimer(at time.Time) {
	if at.IsZero() {
		p.timer.Stop()
		return
	}
	p.timer.Reset(max(time.Until(at), time.Millisecond))
}
