package rollout

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
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
	// members of a view's plans. They must be pure. nil means package
	// resources' own.
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
		cfg.Prove = resources.Prove
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

// leave removes departing endpoints when nothing runs on them, or nobody counts.
func (r *Rollout) leave(now time.Time, g *group, f Fact) {
	g.asking = false
	if !f.Known || f.Requests == 0 || !now.Before(g.until) {
		g.leaving = nil
	}
	r.keep(now, g)
}

// refuse takes a node's refusal.
func (r *Rollout) refuse(now time.Time, e Refuse) {
	g := r.groups[e.Group]
	if g == nil || g.lonely[e.Node] {
		return
	}
	news := make(map[key]bool)
	suspects := r.suspects(g, e)
	if len(suspects) == 0 && len(e.Resources) > 0 {
		g.lonely[e.Node] = true
		r.note(Note{Warn: true, Text: "node refuses what all others have", Group: e.Group, Node: e.Node, Why: e.Text})
		return
	}
	for _, k := range suspects {
		f := Refusal{Type: k.typ, Name: k.name, Version: k.version, Node: e.Node, Group: e.Group, Text: e.Text, At: now}
		if r.bar(f) {
			news[k] = true
			r.out.Refused = append(r.out.Refused, f)
			r.note(Note{Warn: true, Text: "version is quarantined", Group: e.Group, Node: e.Node, Why: f.reason()})
		}
	}
	// What came with it may or may not have been applied, and the server believes
	// that it was: it is sent once more, and the node, which answers after all,
	// is waited for.
	delete(g.fenced, e.Node)
	for _, res := range e.Resources {
		g.suspended[key{e.Type, res.Name, Plain(res.Version)}] = true
		g.held = now
	}
	r.enforce(now, news)
}

// suspects are the versions that a refusal can be about: those that the node
// blames, or all that no group has. Where that leaves a choice, what the node's
// own group had acknowledged before is not meant.
func (r *Rollout) suspects(g *group, e Refuse) (keys []key) {
	for _, res := range e.Resources {
		k := key{e.Type, res.Name, Plain(res.Version)}
		blamed := len(e.Resources) == 1 || len(e.Named) == 0 || slices.Contains(e.Named, res.Name)
		if blamed && !r.established(k) {
			keys = append(keys, k)
		}
	}
	if len(keys) == 1 || len(e.Named) > 0 {
		return keys
	}
	fresh := slices.DeleteFunc(slices.Clone(keys), func(k key) bool {
		o := g.acked.Get(k.typ, k.name)
		return o != nil && o.Version == k.version
	})
	if len(fresh) > 0 {
		return fresh
	}
	return keys
}

// enforce takes back what is newly refused, wherever it is shown.
func (r *Rollout) enforce(now time.Time, news map[key]bool) {
	if r.target != nil && len(news) > 0 {
		bad := touches(r.target.table.Set, news)
		for _, g := range r.groups {
			bad = bad || g.at == r.target && touches(g.set, news)
		}
		if bad {
			r.fail(now, r.reasonOf(news), true)
		}
	}
	if r.good != nil && r.before != nil {
		if why := r.unusable(r.good); why != "" && r.unusable(r.before) == "" {
			r.demote(now, why)
		}
	}
	for _, name := range r.cfg.Groups {
		if g := r.groups[name]; g.shown {
			r.keep(now, g)
		}
	}
}

// reasonOf tells the first of some refusals.
func (r *Rollout) reasonOf(keys map[key]bool) string {
	all := slices.Collect(maps.Keys(keys))
	slices.SortFunc(all, func(a, b key) int { return cmp.Or(cmp.Compare(a.typ, b.typ), cmp.Compare(a.name, b.name)) })
	return r.barred[all[0]].reason()
}

// steered tells which refused routes or listener a set holds, "" for none.
func (r *Rollout) steered(s resources.Set) string {
	for _, typ := range [...]string{resources.RouteType, resources.ListenerType} {
		for _, res := range s.All(typ) {
			if f, bad := r.barred[keyOf(res)]; bad && steers(res) {
				return f.reason()
			}
		}
	}
	return ""
}

// unusable tells why an edition cannot be shown any more, "" if it can.
func (r *Rollout) unusable(ed *edition) string {
	if why := r.steered(ed.table.Set); why != "" {
		return why
	}
	if _, err := r.compose(layers{routes: ed.table, newest: ed.table}, nil); err != nil {
		return err.Error()
	}
	return ""
}

// demote goes back to the plan before the one that all groups have: another
// server's node refuses it, or there was nobody here to do so when it went out.
func (r *Rollout) demote(now time.Time, why string) {
	if r.target != nil {
		r.takeBack(now, "plan taken back", why)
	}
	old := r.good
	r.failed, r.held = &failure{table: old.table, why: why, admissible: true}, why
	r.good, r.before = r.before, nil
	r.note(Note{Warn: true, Text: "plan taken back", Epoch: old.table.Epoch(), Why: why})
	applied := r.applied(old.table.Set)
	for _, name := range r.cfg.Groups {
		if g := r.groups[name]; g.at == old {
			g.at = r.good
			if applied {
				g.m.want(r.good.table)
			} else {
				g.m = machine{live: []*Table{r.good.table}}
			}
			r.force(now, g)
		}
	}
}

// applied reports whether any group has acknowledged a set's routes.
func (r *Rollout) applied(s resources.Set) bool {
	return slices.ContainsFunc(s.All(resources.RouteType), func(res *resources.Resource) bool {
		return steers(res) && r.established(keyOf(res))
	})
}

// force shows the group's phase, or its edition alone where that is not
// possible.
func (r *Rollout) force(now time.Time, g *group) {
	if r.show(now, g) != nil {
		g.m = machine{live: []*Table{g.at.table}}
		r.keep(now, g)
	}
}

// fail takes the target back from all groups that have it.
func (r *Rollout) fail(now time.Time, why string, admissible bool) {
	r.failed, r.held = &failure{table: r.target.table, why: why, admissible: admissible}, why
	r.takeBack(now, "plan taken back", why)
}

func (r *Rollout) takeBack(now time.Time, text, why string) {
	old := r.target
	r.target = nil
	r.note(Note{Warn: why != "", Text: text, Epoch: old.table.Epoch(), Why: why})
	for _, name := range r.cfg.Groups {
		g := r.groups[name]
		if g.at != old {
			continue
		}
		g.at, g.backing, g.entered = r.good, true, now
		clear(g.since)
		g.m.back(r.good.table)
		r.force(now, g)
	}
}

// direct begins to bring a group to its edition's table.
func (r *Rollout) direct(now time.Time, g *group) {
	g.m.want(g.at.table)
	if err := r.show(now, g); err != nil {
		r.unshown(now, g, err)
	}
}

// unshown ends a phase that could not be shown.
func (r *Rollout) unshown(now time.Time, g *group, err error) {
	if g.at == r.target {
		r.fail(now, err.Error(), false)
		return
	}
	r.note(Note{Warn: true, Text: "phase not shown", Group: g.name, Why: err.Error()})
	g.m.abort()
	r.enter(now, g)
}

// keep shows the present phase again, after something about it has changed. What
// cannot be shown leaves what is.
func (r *Rollout) keep(now time.Time, g *group) {
	if err := r.show(now, g); err != nil {
		r.note(Note{Warn: true, Text: "phase not shown", Group: g.name, Why: err.Error()})
		r.enter(now, g)
	}
}

// show shows what the group's machine says.
func (r *Rollout) show(now time.Time, g *group) error {
	l := g.m.layers()
	if !g.asking {
		l.leaving = g.leaving
	}
	set, err := r.compose(l, g)
	if err != nil {
		return fmt.Errorf("%s: %w", g.m.phase, err)
	}
	if !g.shown || !set.Equal(g.set) {
		g.set, g.shown, g.recorded = set, true, false
		g.serial++
		g.seen = false
		r.out.Again = true
		r.out.Shows = slices.DeleteFunc(r.out.Shows, func(s Show) bool { return s.Group == g.name })
		r.out.Shows = append(r.out.Shows, Show{Group: g.name, Set: set, Phase: g.m.phase, Epoch: l.routes.Epoch()})
	}
	r.enter(now, g)
	return nil
}

// enter books that the group is in another phase.
func (r *Rollout) enter(now time.Time, g *group) {
	if g.phase == g.m.phase {
		return
	}
	g.phase, g.entered = g.m.phase, now
	clear(g.since)
	g.serial++
	g.seen = false
	r.out.Again = true
}

// compose renders layers, without what was refused, and proves them. g is whom
// they are for, nil for nobody yet.
func (r *Rollout) compose(l layers, g *group) (resources.Set, error) {
	set, err := l.render(r.cfg.Build)
	if err != nil {
		return resources.Set{}, err
	}
	var h holding
	if g != nil {
		h.shown, h.suspended = g.set, g.suspended
		if g.m.phase != Idle {
			h.acked = resources.Set{}.With(g.acked, gates[Add]...)
		}
		if g.m.phase != Idle && g.backing {
			// Who took it has routes that lead there until it has gone back.
			h.passed = resources.Set{}.With(g.passed, gates[Add]...)
		}
		if less, withheld := r.withhold(set, g.set); withheld {
			return less, nil // it was proven with what it lacks now
		}
	}
	admitted, lost, err := r.admit(set, h)
	if err != nil {
		return resources.Set{}, err
	}
	if err := r.cfg.Prove(admitted); err != nil {
		return resources.Set{}, err
	}
	if lost != "" {
		if err := r.cfg.Covers(admitted, l.routes.View); err != nil {
			return resources.Set{}, fmt.Errorf("%s; no good version can stand in: %w", lost, err)
		}
	}
	return admitted, nil
}

// advance moves a group on if nobody has to be waited for.
func (r *Rollout) advance(now time.Time, g *group) bool {
	settled := g.seen && len(g.since) == 0
	switch g.m.phase {
	case Add, Flip:
		if !settled {
			return false
		}
		g.pass()
		g.m.settled()
		if g.m.phase == Watch {
			if g.at == r.target {
				r.watch = now
			}
			if g.at == r.target || g.backing {
				r.note(Note{Text: "plan settled in group", Group: g.name, Epoch: g.m.next.Epoch()})
			}
		}
		if err := r.show(now, g); err != nil {
			r.unshown(now, g, err)
		}
		return true
	case Watch:
		if g.at == r.target {
			return false
		}
		r.retire(now, g)
		return true
	}
	if !settled || g.m.empty() {
		return false
	}
	moved := g.backing
	g.backing = false
	if !g.recorded && g.proven && g.at == r.good {
		g.recorded = true
		r.record(g.set)
	}
	if len(g.suspended) > 0 {
		clear(g.suspended)
		r.keep(now, g)
		moved = true
	}
	return moved
}

// retire leaves the old table's members behind. Endpoints that were removed
// stay until it is known whether they have requests.
func (r *Rollout) retire(now time.Time, g *group) {
	r.record(g.acked)
	old := g.m.finish()
	if r.cfg.RetireBound > 0 {
		view := g.at.table.View
		gone := departing(view, old.View.Endpoints)
		if len(gone) > 0 {
			g.until, g.asking = now.Add(r.cfg.RetireBound), true
		}
		g.leaving = departing(view, append(gone, g.leaving...))
	}
	if g.asking {
		r.enter(now, g)
		r.out.Again = true
		return
	}
	r.keep(now, g)
}

// turn decides which group is next.
func (r *Rollout) turn(now time.Time) bool {
	if r.target == nil {
		return r.start(now)
	}
	var populated, empty []*group
	for _, name := range r.cfg.Groups {
		g := r.groups[name]
		switch {
		case g.at == r.target:
			if g.m.phase != Watch {
				return false
			}
		case g.nodes > 0:
			populated = append(populated, g)
		default:
			empty = append(empty, g)
		}
	}
	switch {
	case len(populated) > 0:
		if !r.target.urgent && now.Before(r.watch.Add(r.cfg.Watch)) {
			return false
		}
		r.bring(now, populated[0])
	case len(empty) > 0:
		for _, g := range empty {
			if r.target != nil {
				r.bring(now, g)
			}
		}
	default:
		r.note(Note{Text: "plan is everywhere", Epoch: r.target.table.Epoch()})
		r.before, r.good, r.target, r.failed, r.held = r.good, r.target, nil, nil, ""
	}
	return true
}

// bring begins with the target in a group.
func (r *Rollout) bring(now time.Time, g *group) {
	g.at = r.target
	r.note(Note{Text: "plan goes to group", Group: g.name, Epoch: r.target.table.Epoch()})
	r.direct(now, g)
}

// start begins with what is wanted, where nothing speaks against it.
func (r *Rollout) start(now time.Time) bool {
	if r.good == nil || r.good.table == r.news || r.good.table.light(r.news) {
		return false
	}
	for _, g := range r.groups {
		if g.backing {
			return false // what went back may not have arrived
		}
	}
	if why := r.hold(r.news); why != "" {
		if why != r.held {
			r.held = why
			r.note(Note{Warn: true, Text: "plan held", Epoch: r.news.Epoch(), Why: why})
		}
		return false
	}
	r.held = ""
	r.target = &edition{table: r.news, urgent: r.urgent}
	first := r.groups[r.cfg.Groups[0]]
	for _, name := range slices.Backward(r.cfg.Groups) {
		if g := r.groups[name]; g.nodes > 0 {
			first = g
		}
	}
	r.bring(now, first)
	return true
}

// hold tells why a table cannot be rolled out, "" if it can.
func (r *Rollout) hold(t *Table) string {
	if r.failed != nil && !r.failed.admissible && r.failed.table.light(t) {
		return r.failed.why
	}
	if len(r.barred) == 0 {
		return ""
	}
	if at := (verdict{news: t, good: r.good.table, bars: r.bars}); at != r.verdict {
		r.verdict, r.verdictWhy = at, r.possible(t)
	}
	return r.verdictWhy
}

// verdict names what hold has judged: it is asked again and again.
type verdict struct {
	news, good *Table
	bars       uint64
}

// possible tells which step towards a table is not, before the first is taken;
// "" when all are.
func (r *Rollout) possible(t *Table) string {
	if why := r.steered(t.Set); why != "" {
		return why
	}
	old := r.good.table
	both, err := r.compose(layers{routes: t, newest: t, live: []*Table{old}}, nil)
	if err == nil {
		err = r.cfg.Covers(both, old.View)
	}
	if err == nil {
		_, err = r.compose(layers{routes: t, newest: t}, nil)
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

func (r *Rollout) note(n Note) { r.out.Notes = append(r.out.Notes, n) }

// wake is when facts are due that nobody signals.
func (r *Rollout) wake(now time.Time) (at time.Time) {
	soonest := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	for _, g := range r.groups {
		soonest(g.deadline(r.cfg.Bound))
		if len(g.leaving) > 0 {
			soonest(now.Add(r.cfg.Poll))
			soonest(g.until)
		}
		if r.target != nil && g.at == r.target && g.m.phase == Watch {
			if end := r.watch.Add(r.cfg.Watch); now.Before(end) {
				soonest(end)
				soonest(now.Add(r.cfg.Poll))
			}
		}
	}
	return at
}

// asks reports whether it matters who is behind in anything.
func (r *Rollout) asks(g *group) bool { return len(g.fenced)+len(g.lonely) > 0 }

// Needs lists what is to be found out for the next Seen.
func (r *Rollout) Needs() []Need {
	out := make([]Need, 0, len(r.cfg.Groups))
	for _, name := range r.cfg.Groups {
		g := r.groups[name]
		n := Need{Group: name, Serial: g.serial, Set: g.set, Types: g.waits(), Behind: r.asks(g)}
		if g.at == r.target && g.m.phase == Watch {
			n.Watched = r.watch
		}
		if len(g.leaving) > 0 {
			n.Leaving = departing(g.at.table.View, g.leaving)
		}
		out = append(out, n)
	}
	return out
}

// Report describes the present state.
func (r *Rollout) Report() Report {
	out := Report{Held: r.held}
	if r.news != nil {
		out.Wanted = r.news.Epoch()
	}
	if r.target != nil {
		out.Target = r.target.table.Epoch()
	}
	for _, name := range r.cfg.Groups {
		g := r.groups[name]
		gr := GroupReport{Name: name, Phase: g.display(), Set: g.set, Nodes: g.nodes, Kept: r.kept(g.set), Backing: g.backing, Fenced: maps.Clone(g.fenced), Epoch: r.epoch(g)}
		switch {
		case gr.Phase == Retire:
			gr.Until = g.until
		case gr.Phase == Watch && g.at == r.target:
			gr.Until = r.watch.Add(r.cfg.Watch)
		}
		out.Groups = append(out.Groups, gr)
	}
	return out
}

func (r *Rollout) epoch(g *group) policies.Epoch {
	if !g.shown {
		return 0
	}
	return g.m.layers().routes.Epoch()
}

// Refusals lists what is quarantined, oldest first.
func (r *Rollout) Refusals() []Refusal {
	out := make([]Refusal, 0, len(r.order))
	for _, k := range r.order {
		out = append(out, r.barred[k])
	}
	return out
}

// display is a group's name for people.
func display(name string) string {
	if name == "" {
		return "of all others"
	}
	return name
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
