package rollout

import (
	"errors"
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// Config is the configuration of a Rollout.
type Config struct {
	// Groups are the names of all groups in the order of roll-out; required.
	Groups []string
	// Watch is how long a plan is on trial in a group before the next populated
	// one gets it. 0 means not at all.
	Watch time.Duration
	// Bound is how long a phase waits for a node; required.
	Bound time.Duration
	// RetireBound is how long removed endpoints wait for their requests. 0
	// removes them at once.
	RetireBound time.Duration
	// Poll is how often, at most, facts that nobody signals are asked for: the
	// verdict on a watched group and the requests of removed endpoints. 0 means
	// 250 ms.
	Poll time.Duration

	// Build renders a view, Prove proves a set and Covers that it has the
	// members of a view's plans. What they say must follow from what they are
	// given. nil means package resources' own.
	Build  func(resources.View) (resources.Set, error)
	Prove  func(resources.Set) error
	Covers func(resources.Set, resources.View) error
}

const defaultPoll = 250 * time.Millisecond

// Rollout is the state of a fleet's roll-outs. It is not safe for concurrent
// use.
type Rollout struct {
	cfg    Config
	groups map[string]*group

	good   *edition  // what the whole fleet has; nil before the first Want
	before *edition  // what it had before that, if anything
	target *edition  // on its way; nil when nothing is
	watch  time.Time // when the last group of target has settled
	news   *Table    // wanted last
	urgent bool

	failed *failure // the last target that was taken back
	held   string   // why news is not rolled out
	quarantine

	verdict    verdict
	verdictWhy string

	out Out
}

// failure is a table that is not tried again while it is wanted.
type failure struct {
	table *Table
	why   string
	// admissible allows it where good versions can stand in for what was
	// refused.
	admissible bool
}

// New checks the configuration.
func New(cfg Config) (*Rollout, error) {
	switch {
	case len(cfg.Groups) == 0:
		return nil, errors.New("rollout: no groups")
	case cfg.Bound <= 0:
		return nil, fmt.Errorf("rollout: bound %v: must be positive", cfg.Bound)
	case cfg.Watch < 0 || cfg.RetireBound < 0 || cfg.Poll < 0:
		return nil, fmt.Errorf("rollout: watch %v, retire bound %v, poll %v: must not be negative", cfg.Watch, cfg.RetireBound, cfg.Poll)
	}
	if cfg.Poll == 0 {
		cfg.Poll = defaultPoll
	}
	if cfg.Build == nil {
		cfg.Build = resources.Build
	}
	if cfg.Prove == nil {
		cfg.Prove = new(resources.Prover).Prove
	}
	if cfg.Covers == nil {
		cfg.Covers = covers
	}
	r := &Rollout{cfg: cfg, groups: make(map[string]*group), quarantine: newQuarantine()}
	for _, name := range cfg.Groups {
		if r.groups[name] != nil {
			return nil, fmt.Errorf("rollout: group %q is there twice", name)
		}
		r.groups[name] = &group{
			name: name, since: make(map[string]time.Time), fenced: make(map[string]string),
			lonely: make(map[string]bool), suspended: make(map[key]bool),
		}
	}
	return r, nil
}

// Step applies an event and says what is to be done. now must not go back.
func (r *Rollout) Step(now time.Time, e Event) Out {
	r.out = Out{}
	switch e := e.(type) {
	case Want:
		r.want(now, e)
	case Seen:
		r.see(now, e)
	case Refuse:
		r.refuse(now, e)
	case Bar:
		news := make(map[key]bool)
		for _, f := range e.Refusals {
			if r.bar(f) {
				news[key{f.Type, f.Name, f.Version}] = true
				r.note(Note{Warn: true, Text: "version is refused elsewhere", Group: f.Group, Node: f.Node, Why: f.reason()})
			}
		}
		r.enforce(now, news)
	}
	for moved := true; moved; {
		moved = false
		for _, name := range r.cfg.Groups {
			moved = r.advance(now, r.groups[name]) || moved
		}
		moved = r.turn(now) || moved
	}
	r.out.Wake = r.wake(now)
	return r.out
}

// want takes a table that is to be shown.
func (r *Rollout) want(now time.Time, e Want) {
	r.news = e.Table
	if r.good == nil {
		r.begin(now)
		return
	}
	for _, ed := range [...]*edition{r.good, r.target, r.before} {
		if ed != nil {
			r.freshen(ed)
		}
	}
	r.urgent = e.Urgent || r.good.table.stranded() || r.target != nil && r.target.table.stranded()
	switch {
	case r.target == nil:
	case r.good.table.light(r.news):
		r.takeBack(now, "plan withdrawn", "")
	case r.target.table.light(r.news):
		r.target.urgent = r.target.urgent || r.urgent
	case r.urgent && !r.alone():
		// The quickest way to the newest plan is through the present one.
		r.target.urgent = true
	case r.alone() && r.hold(r.news) == "":
		// Only the first group has seen something of the target.
		old := r.target
		r.target = &edition{table: r.news, urgent: r.urgent}
		for _, g := range r.groups {
			if g.at == old {
				g.at = r.target
			}
		}
	}
	for _, name := range r.cfg.Groups {
		g := r.groups[name]
		if g.at != nil && g.m.newest() != g.at.table {
			r.direct(now, g)
		}
	}
}

// begin shows the first table to everybody: there is nothing to compare it
// with, and nobody to ask before.
func (r *Rollout) begin(now time.Time) {
	for _, f := range r.pardon(r.news.Set) {
		r.note(Note{Warn: true, Text: "refused version is shown, for want of another", Epoch: r.news.Epoch(), Why: f.reason()})
	}
	r.good = &edition{table: r.news}
	for _, name := range r.cfg.Groups {
		g := r.groups[name]
		g.at, g.m = r.good, machine{}
		g.m.want(r.news)
		if err := r.show(now, g); err != nil {
			r.good, r.held = nil, err.Error() // the next one is the first
			r.note(Note{Warn: true, Text: "plan not shown", Group: name, Epoch: r.news.Epoch(), Why: err.Error()})
			return
		}
	}
	r.held = ""
}

// freshen gives an edition the newest health and weights.
func (r *Rollout) freshen(ed *edition) {
	if ed.table.light(r.news) {
		ed.table = r.news
		return
	}
	v, changed := ed.table.refreshed(r.news.View)
	if !changed {
		return
	}
	s, err := r.cfg.Build(v)
	if err == nil {
		err = r.cfg.Prove(s)
	}
	if err != nil {
		r.note(Note{Warn: true, Text: "health not shown", Epoch: ed.table.Epoch(), Why: err.Error()})
		return
	}
	ed.table = &Table{View: v, Set: s}
}

// alone reports whether only one group has begun with the target, and can go on
// with another one instead: it has not settled, and its nodes are not spread
// over too many tables.
func (r *Rollout) alone() bool {
	n := 0
	for _, g := range r.groups {
		if g.at == r.target {
			n++
			if g.m.phase == Watch || g.m.full() {
				return false
			}
		}
	}
	return n == 1
}

// see books facts.
func (r *Rollout) see(now time.Time, e Seen) {
	for _, name := range r.cfg.Groups {
		g := r.groups[name]
		f, ok := e.Facts[name]
		if !ok || f.Serial != g.serial {
			continue
		}
		for _, id := range g.take(f, now, r.asks(g)) {
			r.note(Note{Text: "node has caught up", Group: name, Node: id})
		}
		for _, id := range g.fence(now, r.cfg.Bound) {
			r.note(Note{Warn: true, Text: "node is not waited for", Group: name, Node: id, Why: g.fenced[id]})
		}
		if len(g.leaving) > 0 {
			r.leave(now, g, f)
		}
		if f.Bad != "" && g.at == r.target && g.m.phase == Watch {
			r.fail(now, fmt.Sprintf("group %s: %s", display(name), f.Bad), false)
		}
	}
}

func (r *Rollout) note(n Note) { r.out.Notes = append(r.out.Notes, n) }
