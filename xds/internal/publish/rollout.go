package publish

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// pollInterval is the time between two observations without an event: they look for regressions in a
// watched group and for requests on removed endpoints.
const pollInterval = 250 * time.Millisecond

// maxRefused bounds the refused plans that are remembered.
const maxRefused = 16

// rollout decides which set each group is sent. It reads no clock and starts no goroutine: the same
// calls with the same answers give the same sets. It is not safe for concurrent use.
type rollout struct {
	cfg    Config
	build  func(resources.View) (resources.Set, error) // a pure function, as prove
	prove  func(resources.Set) error
	nodes  func(query) observation
	groups []*group // in the order of the rollout

	stable      *snapshot // the plan of the groups that do not have rolling
	rolling     *snapshot // the plan in progress; nil: none
	target      *snapshot // the plan of the last view
	urgent      bool      // a stage of stable has no replica that takes requests: rolling is not watched
	lastSettled time.Time // when rolling settled in its last group

	failed    *snapshot // the last plan that was rolled back; nil once another one is stable
	failedWhy string
	refused   []Refusal                 // the last ones, oldest first
	epochs    map[string]policies.Epoch // of the applied route tables, by version; replaced, not changed

	changed []*group // groups whose set the cache does not have yet, in the order of their last change
}

func newRollout(cfg Config, nodes func(query) observation) *rollout {
	// The prover remembers what a snapshot and the steps towards it share.
	r := &rollout{cfg: cfg, build: resources.Build, prove: new(resources.Prover).Prove, nodes: nodes}
	for _, name := range cfg.Groups.Names() {
		g := &group{name: name, lateSince: make(map[string]time.Time), fenced: make(map[string]string)}
		r.groups = append(r.groups, g)
	}
	return r
}

// newSnapshot renders a view, and proves it.
func (r *rollout) newSnapshot(v resources.View) (*snapshot, error) {
	set, err := r.build(v)
	if err == nil {
		err = r.prove(set)
	}
	if err != nil {
		return nil, err
	}
	return &snapshot{view: v, set: set}, nil
}

// setTarget has a view rolled out to the fleet. now must not decrease from call to call.
func (r *rollout) setTarget(now time.Time, v resources.View) error {
	t, err := r.newSnapshot(v)
	if err != nil || r.target != nil && r.target.set.Equal(t.set) {
		return err
	}
	r.observeGroups(now) // a node that has caught up by now starts with a fresh timeout
	r.target = t
	if r.stable == nil {
		// There is no older plan to compare the first one with: all groups get it at once.
		r.stable = t
		for _, g := range r.groups {
			g.live = []*snapshot{t}
			r.apply(now, g)
		}
	} else {
		r.retarget(now)
	}
	r.advance(now)
	return nil
}

// retarget applies the target's health and weights to the plans of all groups, and withdraws the plan
// in progress if the target is the stable one.
func (r *rollout) retarget(now time.Time) {
	r.stable = r.refresh(r.stable)
	if r.rolling != nil {
		r.rolling = r.refresh(r.rolling)
		// A repair can only be rolled out when the plan in progress has been.
		r.urgent = r.urgent || r.stable.hasDeadStage()
		if r.stable.sameExceptHealth(r.target) {
			r.revert(now, "plan withdrawn", "")
		}
	}
	for _, g := range r.groups {
		renewed := g.started && g.live[0] != r.stable
		if renewed {
			g.live[0] = r.stable // the health of endpoints that rolling lacks
		}
		if renewed || g.newest() != r.snapshotOf(g) {
			r.begin(now, g)
		}
	}
}

// snapshotOf returns the plan that a group has or gets.
func (r *rollout) snapshotOf(g *group) *snapshot {
	if g.started {
		return r.rolling
	}
	return r.stable
}

// refresh returns a snapshot with the health and weights of the target.
func (r *rollout) refresh(s *snapshot) *snapshot {
	if s.sameExceptHealth(r.target) {
		return r.target
	}
	v, changed := s.withHealthOf(r.target.view)
	if !changed {
		return s
	}
	fresh, err := r.newSnapshot(v)
	if err != nil {
		r.cfg.Logger.Warn("health update not applied", "epoch", uint64(s.epoch()), "reason", err.Error())
		return s
	}
	return fresh
}

// observe asks for the state of the nodes, and advances the groups.
func (r *rollout) observe(now time.Time) {
	r.observeGroups(now)
	r.advance(now)
}

// observeGroups asks for the state of the nodes of every group whose set has been applied.
func (r *rollout) observeGroups(now time.Time) {
	for _, g := range r.groups {
		if slices.Contains(r.changed, g) {
			continue
		}
		r.applyObservation(now, g, r.nodes(query{group: g.name, set: g.set, types: g.awaitedTypes(), fenced: g.fenced}))
		if r.rollBackRefused(now, g) {
			continue
		}
		if len(g.removed) > 0 {
			r.dropIdle(now, g)
			r.apply(now, g)
		}
		if r.cfg.Monitor != nil && g.started && g.phase == watch {
			if bad, why := r.cfg.Monitor.Regression(g.name, r.lastSettled); bad {
				r.fail(now, fmt.Sprintf("group %s: %s", groupLabel(g.name), sanitize(why, maxErrorText)))
			}
		}
	}
}

// advance advances all groups as far as their nodes allow, and applies their sets.
func (r *rollout) advance(now time.Time) {
	for {
		for moved := true; moved; {
			moved = false
			for _, g := range r.groups {
				moved = r.advanceGroup(now, g) || moved
			}
			moved = r.advanceRollout(now) || moved
		}
		for _, g := range r.changed {
			epoch := g.routes().epoch()
			r.rememberRoutes(g.set, epoch)
			r.cfg.Cache.Set(g.name, g.set)
			r.logGroup(slog.LevelDebug, "resources applied", g, "epoch", uint64(epoch), "phase", g.phase.String())
		}
		r.changed = nil
		if !slices.ContainsFunc(r.groups, func(g *group) bool { return !g.observed }) {
			return
		}
		r.observeGroups(now)
	}
}

// advanceGroup advances a group to its next phase unless it has to wait for nodes, and reports
// whether anything changed.
func (r *rollout) advanceGroup(now time.Time, g *group) bool {
	settled := g.isSettled(now, r.cfg.AckTimeout)
	switch {
	case g.phase == watch:
		if g.started {
			return false
		}
		r.retire(now, g)
	case !settled:
		return false
	case g.phase == idle:
		moved := g.reverting
		g.reverting = false
		return moved
	case r.isStopped(g):
		return false
	case g.phase == add:
		g.setPhase(now, flip)
		r.apply(now, g)
	case g.phase == flip:
		g.setPhase(now, watch)
		if g.started {
			r.lastSettled = now
		}
		if g.started || g.reverting {
			r.logGroup(slog.LevelInfo, "plan settled in group", g, "epoch", uint64(g.next.epoch()))
		}
		r.apply(now, g)
	}
	return true
}

// retire drops the members of the old plan and of a plan that was rolled back. Removed endpoints stay
// while they have requests.
func (r *rollout) retire(now time.Time, g *group) {
	var members []resources.Endpoint
	for _, t := range g.live {
		members = append(members, t.view.Endpoints...)
	}
	g.live, g.next = []*snapshot{g.next}, nil
	if r.cfg.DrainTimeout > 0 {
		view := g.newest().view
		gone := removedFrom(view, members)
		if len(gone) > 0 {
			g.removeBy = now.Add(r.cfg.DrainTimeout)
		}
		g.removed = removedFrom(view, append(gone, g.removed...))
		r.dropIdle(now, g)
	}
	g.setPhase(now, idle)
	r.apply(now, g)
}

// dropIdle forgets removed endpoints that have no requests, or whose requests are not counted.
func (r *rollout) dropIdle(now time.Time, g *group) {
	requests, known := r.cfg.countRequests(removedFrom(g.newest().view, g.removed))
	if !known || requests == 0 || !now.Before(g.removeBy) {
		g.removed = nil
	}
}

// advanceRollout starts the plan in progress in the next group, and reports whether anything changed.
func (r *rollout) advanceRollout(now time.Time) bool {
	if r.rolling == nil {
		return r.start(now)
	}
	if why := r.whyWithdrawn(); why != "" {
		r.revert(now, "plan withdrawn", why)
		return true
	}
	var populated, empty []*group
	for _, g := range r.groups {
		switch {
		case g.started:
			if g.phase != watch || r.isStopped(g) {
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
		if !r.urgent && now.Before(r.lastSettled.Add(r.cfg.Watch)) {
			return false
		}
		r.startGroup(now, populated[0])
	case len(empty) > 0:
		for _, g := range empty {
			if r.rolling != nil { // not rolled back by the one before
				r.startGroup(now, g)
			}
		}
	default:
		r.cfg.Logger.Info("plan rolled out to all groups", "epoch", uint64(r.rolling.epoch()))
		r.stable, r.rolling, r.failed = r.rolling, nil, nil
		for _, g := range r.groups {
			g.started = false
		}
	}
	return true
}

// whyWithdrawn returns why the target replaces the plan in progress before all groups have it; "" if it
// does not. A node that refuses one plan does not hold back the next, and a repair does not wait until
// all groups lack the stage.
func (r *rollout) whyWithdrawn() string {
	switch {
	case r.rolling.sameExceptHealth(r.target) || r.whyBlocked() != "":
		return ""
	case r.rolling.hasDeadStage() && !r.target.hasDeadStage():
		return "a stage has no replica that takes requests"
	}
	return r.whyStopped()
}

// start starts to roll out the target, unless it is blocked or a group has not acknowledged a rollback.
func (r *rollout) start(now time.Time) bool {
	if r.stable == nil || r.stable == r.target || r.stable.sameExceptHealth(r.target) || r.whyBlocked() != "" ||
		slices.ContainsFunc(r.groups, func(g *group) bool { return g.reverting }) {
		return false
	}
	r.rolling, r.urgent = r.target, r.stable.hasDeadStage()
	first := max(0, slices.IndexFunc(r.groups, func(g *group) bool { return g.nodes > 0 }))
	r.startGroup(now, r.groups[first])
	return true
}

// startGroup starts the plan in progress in a group.
func (r *rollout) startGroup(now time.Time, g *group) {
	g.started, g.live = true, []*snapshot{r.stable} // its nodes may lack the last health, and have these routes
	if g.phase != add {
		g.setPhase(now, add)
	}
	r.logGroup(slog.LevelInfo, "plan rollout started in group", g, "epoch", uint64(r.rolling.epoch()))
	r.begin(now, g)
}

// whyBlocked returns why the target cannot be rolled out; "" if it can.
func (r *rollout) whyBlocked() string {
	if r.failed != nil && r.failed.sameExceptHealth(r.target) {
		return r.failedWhy
	}
	return ""
}

// begin begins the transition of a group to its plan, or replaces the snapshot of one in progress.
func (r *rollout) begin(now time.Time, g *group) {
	if g.phase == idle {
		g.setPhase(now, add)
	}
	g.next = r.snapshotOf(g)
	r.apply(now, g)
}

// fail rolls the plan in progress back in all groups that have it. It is not tried again while it is
// the target.
func (r *rollout) fail(now time.Time, why string) {
	r.failed, r.failedWhy = r.rolling, why
	r.revert(now, "plan rolled back", why)
}

// revert reverts the groups that have the plan in progress to the stable one, whose members they still
// have. This takes one step, or none if no node can have other routes.
func (r *rollout) revert(now time.Time, text, why string) {
	if why == "" {
		r.cfg.Logger.Info(text, "epoch", uint64(r.rolling.epoch()))
	} else {
		r.cfg.Logger.Warn(text, "epoch", uint64(r.rolling.epoch()), "reason", why)
	}
	r.rolling = nil
	for _, g := range r.groups {
		if !g.started {
			continue
		}
		g.started, g.reverting = false, true
		if g.phase == add {
			g.live, g.next = []*snapshot{r.stable}, nil
			g.setPhase(now, idle)
		} else {
			g.live, g.next = append(g.live[:1:1], g.next), r.stable
			g.setPhase(now, flip)
		}
		r.apply(now, g)
	}
}

// apply renders and proves the set of a group's phase; advance then hands it to the cache. If that fails, the
// plan in progress is rolled back. A group without it gets the set of the stable plan, which is proven.
func (r *rollout) apply(now time.Time, g *group) {
	set, err := g.render(r.build)
	if err == nil {
		err = r.prove(set)
	}
	if err != nil && g.started {
		r.fail(now, fmt.Sprintf("%s: %v", g.phase, err))
		return
	}
	if err != nil {
		r.logGroup(slog.LevelWarn, "phase not applied", g, "reason", fmt.Sprintf("%s: %v", g.phase, err))
		g.live, g.next, g.removed, set = []*snapshot{r.stable}, nil, nil, r.stable.set
		g.setPhase(now, idle)
	}
	if !set.Equal(g.set) {
		g.set, g.observed = set, false
		r.changed = append(slices.DeleteFunc(r.changed, func(o *group) bool { return o == g }), g)
	}
}

// rememberRoutes keeps the versions of a set's route tables with their epoch. The status looks up epochs of nodes.
func (r *rollout) rememberRoutes(set resources.Set, epoch policies.Epoch) {
	epochs := maps.Clone(r.epochs)
	if epochs == nil {
		epochs = make(map[string]policies.Epoch)
	}
	maps.DeleteFunc(epochs, func(_ string, e policies.Epoch) bool { return e+maxEpochs < epoch })
	for _, t := range set.All(resources.RouteType) {
		epochs[t.Version] = epoch
	}
	r.epochs = epochs
}

// nextWake returns the time of the next observation that is due without an event; zero: never.
func (r *rollout) nextWake(now time.Time) (at time.Time) {
	soonest := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	for _, g := range r.groups {
		soonest(g.fenceDeadline(now, r.cfg.AckTimeout))
		if len(g.removed) > 0 {
			soonest(now.Add(pollInterval))
			soonest(g.removeBy)
		}
		if r.isStopped(g) {
			soonest(now.Add(reconnectTime)) // by when the node that refuses the plan may have left
		}
		if end := r.lastSettled.Add(r.cfg.Watch); g.started && g.phase == watch && now.Before(end) {
			soonest(end)
			soonest(now.Add(pollInterval))
		}
	}
	return at
}

func (r *rollout) logGroup(level slog.Level, text string, g *group, attrs ...any) {
	r.cfg.Logger.Log(context.Background(), level, text, append([]any{"group", groupLabel(g.name)}, attrs...)...)
}

// groupLabel returns a group's name for messages.
func groupLabel(name string) string {
	if name == "" {
		return "default"
	}
	return name
}
