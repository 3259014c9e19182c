package planrollout

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// Config is the configuration of a Rollout.
type Config struct {
	// Groups are the names of all groups in the order of the rollout; required.
	Groups []string
	// Watch is how long a plan is on trial in a group before the next populated
	// group gets it. 0 skips the trial.
	Watch time.Duration
	// AckTimeout is how long a phase waits for a node; required.
	AckTimeout time.Duration
	// DrainTimeout is how long removed endpoints wait for their requests to
	// end. 0 removes them at once.
	DrainTimeout time.Duration
	// PollInterval is the time between two Observes without an event: they look for
	// regressions in a watched group and for requests on removed endpoints. 0 means
	// 250 ms.
	PollInterval time.Duration

	// Build renders a view, and Prove proves a set. They must be pure functions. nil
	// means the functions of package resources.
	Build func(resources.View) (resources.Set, error)
	Prove func(resources.Set) error
}

const defaultPoll = 250 * time.Millisecond

// Rollout is the state of a fleet's rollouts. It is not safe for concurrent
// use.
type Rollout struct {
	cfg    Config
	groups map[string]*group

	stable      *revision // the plan of all groups; nil before the first SetTarget
	rolling     *revision // being rolled out; nil: none
	lastSettled time.Time // when the last group of rolling settled
	target      *Snapshot // of the last SetTarget
	urgent      bool

	failed    *Snapshot // the last plan that was rolled back; nil once another one is stable
	failedWhy string
	blocked   string    // why target is not rolled out
	refused   []Refusal // the last ones, oldest first

	out Output
}

// maxRefused bounds the refused plans that are remembered.
const maxRefused = 16

// New checks the configuration.
func New(cfg Config) (*Rollout, error) {
	switch {
	case len(cfg.Groups) == 0:
		return nil, errors.New("rollout: no groups")
	case cfg.AckTimeout <= 0:
		return nil, fmt.Errorf("rollout: ack timeout %v: must be positive", cfg.AckTimeout)
	case cfg.Watch < 0 || cfg.DrainTimeout < 0 || cfg.PollInterval < 0:
		return nil, fmt.Errorf("rollout: watch %v, drain timeout %v, poll interval %v: must not be negative", cfg.Watch, cfg.DrainTimeout, cfg.PollInterval)
	}
	cfg.PollInterval = cmp.Or(cfg.PollInterval, defaultPoll)
	if cfg.Build == nil {
		cfg.Build = resources.Build
	}
	if cfg.Prove == nil {
		cfg.Prove = new(resources.Prover).Prove
	}
	r := &Rollout{cfg: cfg, groups: make(map[string]*group)}
	for _, name := range cfg.Groups {
		if r.groups[name] != nil {
			return nil, fmt.Errorf("rollout: group %q is there twice", name)
		}
		r.groups[name] = &group{
			name: name, lateSince: make(map[string]time.Time), fenced: make(map[string]string), refusals: make(map[refusalKey]refusal),
		}
	}
	return r, nil
}

// Step applies an event and returns what the caller has to do. now must not
// decrease.
func (r *Rollout) Step(now time.Time, e Event) Output {
	r.out = Output{}
	switch e := e.(type) {
	case SetTarget:
		r.setTarget(now, e)
	case Observe:
		r.observe(now, e)
	case NACK:
		r.handleNACK(now, e)
	}
	for moved := true; moved; {
		moved = false
		for _, name := range r.cfg.Groups {
			moved = r.advanceGroup(now, r.groups[name]) || moved
		}
		moved = r.advanceRollout(now) || moved
	}
	r.out.Wake = r.nextWake(now)
	return r.out
}

// setTarget makes a snapshot the target, and starts or retargets the transitions of
// groups.
func (r *Rollout) setTarget(now time.Time, e SetTarget) {
	r.target = e.Snapshot
	if r.stable == nil {
		r.applyFirst(now)
		return
	}
	for _, ed := range [...]*revision{r.stable, r.rolling} {
		if ed != nil {
			r.refresh(ed)
		}
	}
	r.urgent = e.Urgent || r.stable.snapshot.hasDeadStage() || r.rolling != nil && r.rolling.snapshot.hasDeadStage()
	switch {
	case r.rolling == nil:
	case r.stable.snapshot.sameExceptHealth(r.target):
		r.revertRollout(now, "plan withdrawn", "")
	case r.rolling.snapshot.sameExceptHealth(r.target):
		r.rolling.urgent = r.rolling.urgent || r.urgent
	case r.urgent && !r.canRetarget():
		// The rollout in progress must end before the newest plan can be rolled
		// out, so it becomes urgent too.
		r.rolling.urgent = true
	case r.canRetarget() && r.whyBlocked(r.target) == "":
		// Only one group has begun with the plan in progress.
		old := r.rolling
		r.rolling = &revision{snapshot: r.target, urgent: r.urgent}
		for _, g := range r.groups {
			if g.revision == old {
				g.revision = r.rolling
			}
		}
	}
	for _, name := range r.cfg.Groups {
		g := r.groups[name]
		if g.revision != nil && g.machine.newest() != g.revision.snapshot {
			r.startTransition(now, g)
		}
	}
}

// applyFirst applies the first snapshot to all groups: there is no older one to
// compare it with.
func (r *Rollout) applyFirst(now time.Time) {
	r.stable = &revision{snapshot: r.target}
	for _, name := range r.cfg.Groups {
		g := r.groups[name]
		g.revision, g.machine = r.stable, phaseMachine{}
		g.machine.setTarget(r.target)
		if err := r.apply(now, g); err != nil {
			r.stable, r.blocked = nil, err.Error() // the next snapshot is the first
			r.note(Note{Warn: true, Text: "plan not applied", Group: name, Epoch: r.target.Epoch(), Why: err.Error()})
			return
		}
	}
	r.blocked = ""
}

// refresh updates the health and weights of a revision.
func (r *Rollout) refresh(ed *revision) {
	if ed.snapshot.sameExceptHealth(r.target) {
		ed.snapshot = r.target
		return
	}
	v, changed := ed.snapshot.withHealthOf(r.target.View)
	if !changed {
		return
	}
	s, err := r.cfg.Build(v)
	if err == nil {
		err = r.cfg.Prove(s)
	}
	if err != nil {
		r.note(Note{Warn: true, Text: "health update not applied", Epoch: ed.snapshot.Epoch(), Why: err.Error()})
		return
	}
	ed.snapshot = &Snapshot{View: v, Set: s}
}

// canRetarget reports whether the plan in progress can be replaced by the
// target: only one group has begun with it, has not settled, and its nodes are
// not spread over too many snapshots.
func (r *Rollout) canRetarget() bool {
	n := 0
	for _, g := range r.groups {
		if g.revision == r.rolling {
			n++
			if g.machine.phase == Watch || g.machine.isFull() {
				return false
			}
		}
	}
	return n == 1
}

// observe applies observations.
func (r *Rollout) observe(now time.Time, e Observe) {
	for _, name := range r.cfg.Groups {
		g := r.groups[name]
		f, ok := e.Groups[name]
		if !ok || f.Serial != g.serial {
			continue
		}
		refuses := func(id string) bool { return r.refusesPlan(g, id) }
		for _, id := range g.applyObservation(f, now, r.needsBehind(g), refuses) {
			r.note(Note{Text: "node caught up", Group: name, Node: id})
		}
		for _, id := range g.fenceLate(now, r.cfg.AckTimeout) {
			r.note(Note{Warn: true, Text: "node fenced", Group: name, Node: id, Why: g.fenced[id]})
		}
		if r.rollBackRefused(now, g) {
			continue
		}
		if len(g.removed) > 0 {
			r.dropRemoved(now, g, f)
		}
		if f.Regression != "" && g.revision == r.rolling && g.machine.phase == Watch {
			r.failRollout(now, fmt.Sprintf("group %s: %s", groupLabel(name), f.Regression))
		}
	}
}

func (r *Rollout) note(n Note) { r.out.Notes = append(r.out.Notes, n) }
