package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Target is where sets are shown: package cache. It is called by one
// goroutine.
type Target interface {
	// Set shows a set to the nodes of a group, "" being all of them, and does
	// not wait for any.
	Set(group string, set resources.Set)
	// Unanswered adds the ids of nodes to ids that were told something of the
	// types, or will be without another Set, and have not replied. From Set
	// on, a node is among them or has nothing of the types on its way.
	Unanswered(types []string, ids map[string]bool)
	// Changed is signalled after nodes have replied.
	Changed() <-chan struct{}
}

// Config is the configuration of a Publisher.
type Config struct {
	Target Target  // required
	Ledger *Ledger // what nodes acknowledge; required
	// Bound is how long a phase waits for a node, which then is fenced. It
	// should exceed the time in which a proxy connects and warms. A node that
	// caught up and is shown a newer table within the phase has a bound of its
	// own, up to three for the phase. 0 means 3 s.
	Bound  time.Duration
	Logger *slog.Logger // nil discards
}

const (
	defaultBound = 3 * time.Second
	// phaseBounds is how many bounds a phase lasts at most, so that a fleet in
	// motion moves on whoever is late in turn.
	phaseBounds = 3
	// remembered is how many tables are kept to tell which one a node has.
	remembered = 16
)

// gates are the types that a phase waits for.
var gates = map[Phase][]string{
	Add:  {resources.ClusterType, resources.EndpointType},
	Flip: {resources.RouteType, resources.ListenerType},
}

// gated are the types of all gates.
var gated = slices.Concat(gates[Add], gates[Flip])

// Publisher shows the latest submitted view, in phases. Submit and Status may
// be called by any goroutine; Run by one.
type Publisher struct {
	cfg  Config
	log  *slog.Logger
	news chan struct{} // capacity 1: submitted is set

	mu        sync.Mutex
	submitted *resources.View // not taken by Run yet
	state     state

	// Owned by Run.
	machine Machine
	shown   resources.Set
	wanted  *Table // the last one
	timer   *time.Timer
	entered time.Time            // when the phase began
	since   map[string]time.Time // since when nodes that are waited for are late in the phase
}

// state is what Status tells.
type state struct {
	phase  Phase
	epoch  policies.Epoch
	err    error
	tables []*Table        // the last ones wanted, oldest first
	fenced map[string]bool // nodes that are not waited for
	shown  resources.Set
}

// New checks the configuration. Nothing is shown before Run.
func New(cfg Config) (*Publisher, error) {
	switch {
	case cfg.Target == nil || cfg.Ledger == nil:
		return nil, errors.New("publish: Target and Ledger must be given")
	case cfg.Bound < 0:
		return nil, fmt.Errorf("publish: bound %v: must not be negative", cfg.Bound)
	case cfg.Bound == 0:
		cfg.Bound = defaultBound
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Publisher{cfg: cfg, log: log, news: make(chan struct{}, 1), state: state{fenced: make(map[string]bool)}}, nil
}

// Submit asks for a view to be shown. It never blocks; of several views that
// come faster than they can be shown the last one is. A view that cannot be
// rendered or proven is logged and told by Status, and what is shown stays.
// The caller must not change the view afterwards.
func (p *Publisher) Submit(v resources.View) {
	p.mu.Lock()
	p.submitted = &v
	p.mu.Unlock()
	select {
	case p.news <- struct{}{}:
	default:
	}
}

// Run publishes until the context ends. What is shown then stays shown.
func (p *Publisher) Run(ctx context.Context) error {
	p.timer = time.NewTimer(time.Hour)
	defer p.timer.Stop()
	p.disarm()
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
			p.expire()
		}
	}
}

// take begins to show what was submitted.
func (p *Publisher) take() {
	p.mu.Lock()
	v := p.submitted
	p.submitted = nil
	p.mu.Unlock()
	if v == nil {
		return
	}
	t, err := NewTable(*v)
	p.mu.Lock()
	p.state.err = err
	p.mu.Unlock()
	if err != nil {
		p.log.Error("view not published", "error", err)
		return
	}
	if p.wanted != nil && p.wanted.Set.Equal(t.Set) {
		return
	}
	p.wanted = t
	p.mu.Lock()
	p.state.tables = append(p.state.tables, t)
	p.state.tables = p.state.tables[max(0, len(p.state.tables)-remembered):]
	p.mu.Unlock()
	if p.machine.Phase() != Idle {
		p.settled() // who has caught up by now is not late since before
	}
	p.step(Want{t})
}

// step drives the machine by an event, and on through every phase that nobody
// has to be waited for.
func (p *Publisher) step(e Event) {
	for {
		before := p.machine.Phase()
		show, ok := p.machine.Step(e)
		if !ok {
			return
		}
		set, err := Render(show)
		if err != nil {
			// The table was proven, so this is about what is added to it.
			p.log.Error("phase not published", "phase", show.Phase.String(), "error", err)
			p.mu.Lock()
			p.state.err = err
			p.mu.Unlock()
			p.machine.Step(Abort{})
			p.disarm()
			return
		}
		changed := !set.Equal(p.shown)
		if changed {
			p.shown = set
			p.cfg.Target.Set("", set)
		}
		p.note(show, changed)
		if show.Phase == Idle {
			p.disarm()
			return
		}
		entered := before != show.Phase
		if entered {
			p.entered, p.since = time.Now(), make(map[string]time.Time)
		}
		if !(entered && !changed) && !p.settled() {
			p.arm()
			return
		}
		e = Settled{}
	}
}

// look moves on if nobody has to be waited for any more.
func (p *Publisher) look() {
	p.unfence()
	if p.machine.Phase() != Idle && p.settled() {
		p.step(Settled{})
	}
}

// settled reports whether everybody who counts has what the phase shows, and
// notes since when those who do not are late.
func (p *Publisher) settled() bool {
	late := p.late(gates[p.machine.Phase()])
	maps.DeleteFunc(p.since, func(id string, _ time.Time) bool { return !late[id] || p.state.fenced[id] })
	now := time.Now()
	for id := range late {
		if _, ok := p.since[id]; !ok && !p.state.fenced[id] {
			p.since[id] = now
		}
	}
	return len(p.since) == 0
}

// expire fences who was late for the whole bound, and moves on unless others
// have time left.
func (p *Publisher) expire() {
	if p.machine.Phase() == Idle {
		return
	}
	if !p.settled() {
		p.fence(time.Now())
	}
	if !p.settled() {
		p.arm()
		return
	}
	p.step(Settled{})
}

// late are the nodes that do not have what is shown of some types, or have
// something else on its way to them. The cache knows the latter; what a node
// acknowledged before can be what is shown now, and yet not last.
func (p *Publisher) late(types []string) map[string]bool {
	late := make(map[string]bool)
	p.cfg.Target.Unanswered(types, late)
	p.cfg.Ledger.Behind(p.shown, types, late)
	p.cfg.Ledger.Dismiss(late)
	return late
}

// note keeps what Status tells.
func (p *Publisher) note(show Show, changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state.phase, p.state.shown = show.Phase, p.shown
	epoch := epochOf(show.Routes)
	if epoch != p.state.epoch {
		p.log.Info("plan shown", "epoch", uint64(epoch), "phase", show.Phase.String())
	} else if changed {
		p.log.Debug("resources shown", "epoch", uint64(epoch), "phase", show.Phase.String())
	}
	p.state.epoch = epoch
}

// epochOf is the epoch of the newest plan of a table.
func epochOf(t *Table) policies.Epoch {
	var epoch policies.Epoch
	for _, plan := range t.View.Plans {
		epoch = max(epoch, plan.Epoch)
	}
	return epoch
}

// arm sets the timer to when the first of the late nodes has used its bound up,
// or the phase its own. A phase that is shown again, for a newer table, goes on:
// who was late before stays so, and only who had caught up begins anew.
func (p *Publisher) arm() {
	at := p.entered.Add(phaseBounds * p.cfg.Bound)
	for _, since := range p.since {
		if end := since.Add(p.cfg.Bound); end.Before(at) {
			at = end
		}
	}
	p.timer.Reset(time.Until(at))
}

func (p *Publisher) disarm() { p.timer.Stop() }

// fence stops waiting for the nodes that are late for the whole bound. They
// keep what they have until they catch up, and nobody waits for them meanwhile.
func (p *Publisher) fence(now time.Time) {
	over := now.Sub(p.entered) >= phaseBounds*p.cfg.Bound
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, since := range p.since {
		if over || now.Sub(since) >= p.cfg.Bound {
			p.state.fenced[id] = true
			p.log.Warn("node does not acknowledge and is not waited for", "node", id, "phase", p.machine.Phase().String())
		}
	}
}

// unfence counts the nodes again that have caught up or gone.
func (p *Publisher) unfence() {
	if len(p.state.fenced) == 0 {
		return
	}
	late := p.late(gated)
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.state.fenced {
		if !late[id] {
			delete(p.state.fenced, id)
			p.log.Info("node has caught up", "node", id)
		}
	}
}
