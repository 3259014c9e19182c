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

// Target is where sets are shown: package cache. It is called by one
// goroutine.
type Target interface {
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

// Judge tells how the nodes of a group fare under a new plan: errors, iteration
// time. It is asked a few times per second and must not block.
type Judge interface {
	// Judge reports whether something became worse since the plan settled in the
	// group, and what.
	Judge(group string, since time.Time) (bad bool, why string)
}

// Activity counts requests in the proxies. It is asked a few times per second
// and must not block.
type Activity interface {
	// Active returns the requests that run on some addresses of a cluster;
	// known is false where nobody counts them.
	Active(cluster string, addresses []string) (requests int, known bool)
}

// Config is the configuration of a Publisher.
type Config struct {
	Target Target  // required
	Ledger *Ledger // what nodes acknowledge; required, and of this publisher alone
	// Groups are the groups of nodes in the order of roll-out. The Target must
	// sort nodes by the same. nil is one group for all.
	Groups *nodegroup.List
	// Watch is how long a new plan is on trial in one group before the next one
	// that has nodes gets it; with a single such group nobody waits. 0 goes on as
	// soon as it is acknowledged.
	Watch time.Duration
	// Judge can end a trial early, and takes the plan back. nil: only what nodes
	// refuse does.
	Judge Judge
	// Bound is how long a phase waits for a node, which then is fenced. It
	// should exceed the time in which a proxy connects and warms. A node that
	// caught up and is shown a newer table within the phase has a bound of its
	// own, up to three for the phase. 0 means 3 s.
	Bound time.Duration
	// Activity keeps removed endpoints, draining, until they have no request or
	// RetireBound is over. nil removes them at once.
	Activity    Activity
	RetireBound time.Duration // 0 means 30 s
	// Refused is told what nodes refuse, once per version, for other servers. It
	// is called by Run and holds it up. nil: nobody is told.
	Refused func([]Refusal)
	Logger  *slog.Logger // nil discards
}

// Refusal is a version of a resource that a node refused.
type Refusal = rollout.Refusal

const (
	defaultBound       = 3 * time.Second
	defaultRetireBound = 30 * time.Second
	// remembered is how many tables are kept to tell which one a node has.
	remembered = 16
)

// validate completes a configuration.
func (c Config) validate() (Config, error) {
	switch {
	case c.Target == nil || c.Ledger == nil:
		return c, errors.New("publish: Target and Ledger must be given")
	case c.Bound < 0 || c.Watch < 0 || c.RetireBound < 0:
		return c, fmt.Errorf("publish: bound %v, watch %v, retire bound %v: must not be negative", c.Bound, c.Watch, c.RetireBound)
	}
	if c.Bound == 0 {
		c.Bound = defaultBound
	}
	if c.RetireBound == 0 {
		c.RetireBound = defaultRetireBound
	}
	if c.Activity == nil {
		c.RetireBound = 0
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

func (c Config) rollout() rollout.Config {
	return rollout.Config{Groups: c.Groups.Names(), Watch: c.Watch, Bound: c.Bound, RetireBound: c.RetireBound}
}

// Publisher shows the latest submitted view, group after group. Submit, Bar,
// Refused and Status may be called by any goroutine; Run by one.
type Publisher struct {
	cfg  Config
	news chan struct{} // capacity 1: submitted or barred is set

	mu        sync.Mutex
	submitted *resources.View // not taken by Run yet
	barred    []Refusal       // not taken by Run yet
	state     state

	// Owned by Run.
	table   func(resources.View) (*rollout.Table, error) // rendered and proven
	rollout *rollout.Rollout
	wanted  *rollout.Table // the last one
	timer   *time.Timer
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
	p := &Publisher{cfg: cfg, news: make(chan struct{}, 1)}
	p.table = func(v resources.View) (*rollout.Table, error) { return rollout.NewTable(v, prover.Prove) }
	steps := cfg.rollout()
	steps.Prove = prover.Prove
	if p.rollout, err = rollout.New(steps); err != nil {
		return nil, fmt.Errorf("publish: %w", err)
	}
	cfg.Ledger.sort(cfg.Groups.Of)
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

// Bar says that nodes of other servers have refused these versions: no node of
// this one is sent them from now on. It never blocks.
func (p *Publisher) Bar(list []Refusal) {
	p.mu.Lock()
	p.barred = append(p.barred, list...)
	p.mu.Unlock()
	p.wake()
}

func (p *Publisher) wake() {
	select {
	case p.news <- struct{}{}:
	default:
	}
}

// Refused lists the versions that are quarantined, oldest first: those that this
// server's nodes refused and those of Bar. There are at most 1,024.
func (p *Publisher) Refused() []Refusal {
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
		case <-p.news:
			p.take()
		case <-p.cfg.Ledger.Changed():
			p.look()
		case <-p.cfg.Target.Changed():
			p.look()
		case <-p.timer.C:
			p.look()
		}
	}
}

// look finds out what the nodes have and have refused.
func (p *Publisher) look() {
	for _, r := range p.cfg.Ledger.takeRefused() {
		p.step(r)
	}
	p.step(p.seen())
}

// take begins to show what was submitted, and ends to show what was barred.
func (p *Publisher) take() {
	p.mu.Lock()
	v, barred := p.submitted, p.barred
	p.submitted, p.barred = nil, nil
	p.mu.Unlock()
	if len(barred) > 0 {
		p.step(rollout.Bar{Refusals: barred})
	}
	if v == nil {
		return
	}
	t, err := p.table(*v)
	p.mu.Lock()
	p.state.err = err
	p.mu.Unlock()
	if err != nil {
		p.cfg.Logger.Error("view not published", "error", err)
		return
	}
	if p.wanted != nil && p.wanted.Set.Equal(t.Set) {
		return
	}
	p.remember(t)
	p.look() // who has caught up by now is not late since before
	p.step(rollout.Want{Table: t})
}

// remember keeps a table, so that Status can tell who has it.
func (p *Publisher) remember(t *rollout.Table) {
	p.wanted = t
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.state.tables); n > 0 && p.state.tables[n-1].Set.Equal(t.Set, resources.RouteType) {
		p.state.tables[n-1] = t
		return
	}
	p.state.tables = append(p.state.tables, t)
	p.state.tables = p.state.tables[max(0, len(p.state.tables)-remembered):]
}

// step drives the rollout by an event, and on as long as it moves.
func (p *Publisher) step(e rollout.Event) {
	for {
		out := p.rollout.Step(time.Now(), e)
		for _, n := range out.Notes {
			p.log(n)
		}
		for _, s := range out.Shows {
			p.cfg.Target.Set(s.Group, s.Set)
			p.cfg.Logger.Debug("resources shown", "group", s.Group, "epoch", uint64(s.Epoch), "phase", s.Phase.String())
		}
		p.mu.Lock()
		p.state.report, p.state.refusals = p.rollout.Report(), p.rollout.Refusals()
		p.mu.Unlock()
		if len(out.Refused) > 0 && p.cfg.Refused != nil {
			p.cfg.Refused(out.Refused)
		}
		if !out.Again {
			p.arm(out.Wake)
			return
		}
		e = p.seen()
	}
}

// seen asks the ledger and the others what the rollout needs to know.
func (p *Publisher) seen() rollout.Seen {
	needs := p.rollout.Needs()
	facts := p.cfg.Ledger.facts(needs, func(types []string) map[string]bool {
		// The cache knows what is on its way: what a node acknowledged before
		// can be what is shown now, and yet not last.
		ids := make(map[string]bool)
		p.cfg.Target.Unanswered(types, ids)
		return ids
	})
	for _, n := range needs {
		f := facts[n.Group]
		if p.cfg.Judge != nil && !n.Watched.IsZero() {
			if bad, why := p.cfg.Judge.Judge(n.Group, n.Watched); bad {
				f.Bad = clip(why, maxErrorText)
			}
		}
		if len(n.Leaving) > 0 {
			f.Requests, f.Known = p.active(n.Leaving)
		}
		facts[n.Group] = f
	}
	return rollout.Seen{Facts: facts}
}

// active sums the requests on endpoints over the clusters that can reach them;
// known is false when nobody counts in any of them.
func (p *Publisher) active(endpoints []resources.Endpoint) (requests int, known bool) {
	if p.cfg.Activity == nil {
		return 0, false
	}
	byModel := make(map[string][]string)
	for _, e := range endpoints {
		byModel[e.Model] = append(byModel[e.Model], e.Address)
	}
	for model, addresses := range byModel {
		for k := range policies.MaxStages {
			n, ok := p.cfg.Activity.Active(resources.ClusterName(model, k), addresses)
			if ok {
				requests, known = requests+n, true
			}
		}
	}
	return requests, known
}

// log tells an operator of a transition.
func (p *Publisher) log(n rollout.Note) {
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

// arm sets the timer.
func (p *Publisher) arm(at time.Time) {
	if at.IsZero() {
		p.timer.Stop()
		return
	}
	p.timer.Reset(max(time.Until(at), time.Millisecond))
}
