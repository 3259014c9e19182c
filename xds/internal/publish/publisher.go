package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/internal/wakeup"
	"github.com/cascadeinfer/cascade/policies"
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
	// should exceed the time in which a proxy connects and warms. New health or
	// weights restart the timeout of a node that had caught up; a phase never exceeds
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
	c.AckTimeout, c.DrainTimeout = cmp.Or(c.AckTimeout, defaultAckTimeout), cmp.Or(c.DrainTimeout, defaultDrainTimeout)
	if c.RequestCounter == nil {
		c.DrainTimeout = 0
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// countRequests sums the requests on endpoints over the clusters that can reach
// them. known is false if none of them is counted.
func (c Config) countRequests(endpoints []resources.Endpoint) (requests int, known bool) {
	if c.RequestCounter == nil {
		return 0, false
	}
	byModel := make(map[string][]string)
	for _, e := range endpoints {
		byModel[e.Model] = append(byModel[e.Model], e.Address)
	}
	for model, addresses := range byModel {
		for k := range policies.MaxStages {
			n, ok := c.RequestCounter.ActiveRequests(resources.ClusterName(model, k), addresses)
			if ok {
				requests, known = requests+n, true
			}
		}
	}
	return requests, known
}

// Publisher rolls out the latest submitted view, group after group. Submit and Status
// may be called by any goroutine; Run by one.
type Publisher struct {
	cfg    Config
	wakeup chan struct{} // capacity 1: submitted is set

	mu        sync.Mutex
	submitted *resources.View // not taken by Run yet
	state     Status          // without nodes
	err       error           // why the last view is not a snapshot

	rollout *rollout // of Run, as the rest
	timer   *time.Timer
}

// New checks the configuration. Nothing is applied before Run.
func New(cfg Config) (*Publisher, error) {
	cfg, err := cfg.validate()
	if err != nil {
		return nil, err
	}
	p := &Publisher{cfg: cfg, wakeup: make(chan struct{}, 1)}
	// The cache knows which responses are on their way: a node may have acknowledged the versions that
	// are applied now, and still be about to receive others.
	p.rollout = newRollout(cfg, func(q query) observation { return cfg.Ledger.observe(q, cfg.Cache.Unanswered) })
	cfg.Ledger.classify(cfg.Groups.GroupOf, cfg.Counts)
	p.state = p.rollout.status()
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
	wakeup.Send(p.wakeup)
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

// observeNodes has the rollout look at the nodes.
func (p *Publisher) observeNodes() {
	now := time.Now()
	p.rollout.observe(now)
	p.endStep(now)
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
	now := time.Now()
	err := p.rollout.setTarget(now, *v)
	if err != nil {
		p.cfg.Logger.Error("view not published", "error", err)
	}
	p.mu.Lock()
	p.err = err
	p.mu.Unlock()
	p.endStep(now)
}

// endStep shows the state of the rollout, and sets the timer.
func (p *Publisher) endStep(now time.Time) {
	st := p.rollout.status()
	p.mu.Lock()
	p.state = st
	p.mu.Unlock()
	if at := p.rollout.nextWake(now); at.IsZero() {
		p.timer.Stop()
	} else {
		p.timer.Reset(max(time.Until(at), time.Millisecond))
	}
}
