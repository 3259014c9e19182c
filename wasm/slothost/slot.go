package slothost

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/promotion"
)

// slot is the slot of one kind: it executes the actions of a promotion.Machine, and knows
// which module decides a call.
type slot struct {
	// Fixed after New.
	host   *Slots
	kind   abi.Kind
	name   lifecycle.Kind
	native Native
	every  int                    // the recording rate
	clock  func() policies.Micros // the time that modules see
	start  time.Time              // Unix time in machine events is start plus the monotonic time since then
	log    *slog.Logger
	jobs   chan promotion.Action // for the builder; at most one is in progress

	own *records // of the native policy

	// The route, and the modules that it names; nil for the native policy. A call holds
	// the lock only while it chooses its module.
	routing           sync.RWMutex
	route             promotion.Route
	active, candidate *module

	mu        sync.Mutex // guards the fields below; taken after Slots.mu and before routing
	machine   *promotion.Machine
	actions   []promotion.Action // of the step in progress; kept for its memory
	stopped   bool
	offers    map[lifecycle.Generation]lifecycle.Candidate // not built yet
	modules   map[lifecycle.Generation]*module
	cancel    context.CancelFunc // of what is being built
	shadow    *module
	figures   lifecycle.Figures // of the module in shadow so far
	closing   sync.WaitGroup
	failed    error            // of modules that could not be freed
	lastEnded lifecycle.Status // the last ended generation that was logged

	// stable reports whether the desired state has a stable module.
	stable atomic.Bool

	scopesMu sync.Mutex
	scopes   map[string]*memory // guarded by scopesMu

	desired // guarded by Slots.mu
}

func newSlot(s *Slots, k abi.Kind, h history, clock func() policies.Micros) (*slot, error) {
	c := &s.config
	every := c.Every
	if !perRequest(k) {
		every = min(every, 1)
	}
	gates := c.Gates[k]
	if gates.Canary.Compared == 0 {
		gates.Canary.Compared = compared(k, gates.Canary.Calls, every)
	}
	gates.Kind = slotKind(k)
	machine, err := promotion.New(gates)
	if err != nil {
		return nil, fmt.Errorf("gates of %s: %w", k, err)
	}
	return &slot{
		host: s, kind: k, name: slotKind(k), native: c.Native, every: every, clock: clock, start: c.Now(),
		log: c.Logger.With("kind", k.String()), jobs: make(chan promotion.Action, 1), machine: machine,
		own: newRecords(every, perRequest(k), clock), scopes: map[string]*memory{},
		offers: map[lifecycle.Generation]lifecycle.Candidate{}, modules: map[lifecycle.Generation]*module{},
		desired: desired{history: h, spec: lifecycle.SlotSpec{Kind: slotKind(k)}, about: map[lifecycle.Generation]*about{}},
	}, nil
}

// compared returns how many answers must be compared in a step of a canary: half of
// those that will be recorded while the step gets the calls that its gate asks for.
func compared(k abi.Kind, calls uint64, every int) uint64 {
	switch {
	case every == 0: // nothing is recorded
		return 0
	case calls == 0 && perRequest(k):
		calls = promotion.DefaultCanaryCalls
	}
	return max(1, calls/uint64(2*every))
}

// memoryOf returns the memory of a scope. A scope has one, however often it is asked for.
func (s *slot) memoryOf(scope string) *memory {
	s.scopesMu.Lock()
	defer s.scopesMu.Unlock()
	m := s.scopes[scope]
	if m == nil {
		m = new(memory)
		s.scopes[scope] = m
	}
	return m
}

// run builds, tries and frees modules until the context is done. Then the native policy
// takes over, and run frees all modules once their calls have returned, which the limits of
// the kind bound. The error is about modules that could not be freed. It is called once.
func (s *slot) run(ctx context.Context) error {
	var group sync.WaitGroup
	group.Go(func() { s.build(ctx) })
	group.Go(func() { s.runTrials(ctx) })
	group.Wait()
	s.mu.Lock()
	s.stopped, s.shadow = true, nil
	s.setRoute(promotion.Route{})
	for g := range s.modules {
		s.free(g)
	}
	clear(s.offers)
	s.mu.Unlock()
	s.closing.Wait()
	return s.failed
}

// offer starts the promotion of a module to its goal, or changes the goal of one that
// is being promoted; see promotion.Offer. The error is why the offer is refused.
func (s *slot) offer(o promotion.Offer, c lifecycle.Candidate) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errors.New("the slot has stopped")
	}
	if _, ok := s.offers[c.Generation]; !ok {
		s.offers[c.Generation] = c
	}
	return s.step(promotion.Event{Kind: promotion.Offered, Offer: o})
}

// withdraw ends a candidate that is no longer wanted.
func (s *slot) withdraw(g lifecycle.Generation) {
	s.handle(promotion.Event{Kind: promotion.Withdrawn, Generation: g})
}

// end ends a generation, be it active, a candidate, or the previous one. When it returns,
// no call gets the generation any more.
func (s *slot) end(g lifecycle.Generation, reason string) {
	s.handle(promotion.Event{Kind: promotion.RolledBack, Generation: g, Reason: reason})
}

// fault reports one call that the module of a generation did not answer.
func (s *slot) fault(g lifecycle.Generation) {
	s.handle(promotion.Event{Kind: promotion.Faulted, Generation: g})
}

// state returns the state of the slot, with what the machine knows of its modules.
func (s *slot) state() lifecycle.SlotStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine.Status()
}

// handle lets the machine handle an event that it cannot refuse.
func (s *slot) handle(ev promotion.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.step(ev) // only offers are refused
}

// step lets the machine handle an event, and executes its actions. The lock is held.
func (s *slot) step(ev promotion.Event) error {
	ev.Now = policies.Micros(s.start.UnixMicro()) + policies.Micros(s.host.config.Now().Sub(s.start)/time.Microsecond)
	actions, err := s.machine.Step(ev, s.actions[:0])
	s.actions = actions
	for _, a := range actions {
		s.execute(a)
	}
	if len(actions) > 0 {
		s.logChanges()
	}
	if len(actions) > 0 || ev.Kind != promotion.Ticked && ev.Kind != promotion.Observed {
		s.host.changed()
	}
	s.dropOffers()
	return err
}

// execute executes an action, or starts it.
func (s *slot) execute(a promotion.Action) {
	switch a.Kind {
	case promotion.Verify, promotion.Compile, promotion.Warm:
		s.jobs <- a // does not block: the job before it has ended
	case promotion.Cancel:
		if s.cancel != nil {
			s.cancel()
		}
	case promotion.Shadow:
		s.shadow, s.figures = s.modules[a.Generation], lifecycle.Figures{}
	case promotion.Switch:
		old := s.route
		s.setRoute(a.Route)
		old.Active = a.Route.Active
		if c := s.candidate; c != nil && old != a.Route { // a step of its canary begins
			c.before, c.compared = c.stats().calls, lifecycle.Figures{}
		}
	case promotion.Close:
		s.free(a.Generation)
	}
}

// setRoute puts a route in force. The lock is held.
func (s *slot) setRoute(r promotion.Route) {
	s.routing.Lock()
	defer s.routing.Unlock()
	s.route, s.active, s.candidate = r, s.modules[r.Active], s.modules[r.Candidate]
}

// free closes a module that no route names any more, once its last call has returned. The
// lock is held.
func (s *slot) free(g lifecycle.Generation) {
	m := s.modules[g]
	if m == nil {
		return
	}
	delete(s.modules, g)
	s.closing.Go(func() {
		m.inUse.Wait()
		err := m.close()
		if err != nil {
			s.log.Error("policy module was not freed", "generation", uint64(g), "err", err)
		}
		s.mu.Lock()
		s.failed = errors.Join(s.failed, err)
		s.mu.Unlock()
		s.host.keepStats(s, g, m.stats())
	})
}

// dropOffers drops the bytes of offers that have ended. The lock is held.
func (s *slot) dropOffers() {
	if len(s.offers) == 0 {
		return
	}
	wanted := map[lifecycle.Generation]bool{}
	for _, l := range s.machine.Status().Modules {
		wanted[l.Generation] = wanted[l.Generation] || l.Phase <= lifecycle.Verifying
	}
	for g := range s.offers {
		if !wanted[g] {
			delete(s.offers, g)
		}
	}
}

// logChanges logs the results of the last step. The lock is held; the logger's handler
// should not be slow.
func (s *slot) logChanges() {
	for _, a := range s.actions {
		if a.Kind == promotion.Switch {
			s.log.Info("policy switched", "active", uint64(a.Route.Active),
				"candidate", uint64(a.Route.Candidate), "permille", a.Route.Permille, "scope", a.Route.Scope)
		}
	}
	for _, l := range s.machine.Status().Modules {
		if !l.Phase.Ended() {
			continue
		}
		if l != s.lastEnded {
			s.lastEnded = l
			level := slog.LevelInfo
			if l.Phase == lifecycle.Rejected {
				level = slog.LevelWarn
			}
			s.log.Log(context.Background(), level, "policy ended",
				"generation", uint64(l.Generation), "phase", l.Phase.String(), "reason", l.Reason)
		}
		return // the latest is first
	}
}

// build executes the machine's build jobs one after the other.
func (s *slot) build(ctx context.Context) {
	var c lifecycle.Candidate // what is compiled is what was verified, even if it was offered again since
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-s.jobs:
			c = s.runJob(ctx, a, c)
		}
	}
}

// runJob executes one build job. It takes the candidate from the offers for the first
// job and returns it for the next.
func (s *slot) runJob(ctx context.Context, a promotion.Action, c lifecycle.Candidate) lifecycle.Candidate {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	s.cancel = cancel
	if a.Kind == promotion.Verify {
		c = s.offers[a.Generation]
		delete(s.offers, a.Generation)
	}
	m := s.modules[a.Generation]
	s.mu.Unlock()

	s.host.building.Lock()
	done := promotion.Event{Generation: a.Generation}
	err := ctx.Err()
	if err == nil {
		switch a.Kind {
		case promotion.Verify:
			done.Kind, err = promotion.Verified, s.verify(c)
		case promotion.Compile:
			done.Kind = promotion.Compiled
			m, err = s.compile(ctx, c)
		case promotion.Warm:
			done.Kind, err = promotion.Warmed, m.warm(ctx)
		}
	}
	s.host.building.Unlock()
	if err != nil {
		done.Kind, done.Reason = promotion.Failed, fmt.Sprintf("%s: %v", a.Kind, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancel = nil
	if done.Kind == promotion.Compiled {
		s.modules[a.Generation] = m
	}
	_ = s.step(done)
	if a.Kind != promotion.Verify {
		return lifecycle.Candidate{}
	}
	return c
}

// runTrials lets the machine check its gates, replays recorded calls on the module in
// shadow, and compares the answers of the one in canary.
func (s *slot) runTrials(ctx context.Context) {
	tick := time.NewTicker(s.host.config.Tick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.observe()
			s.try(ctx)
		}
	}
}

// observe passes the time and the figures of the canary to the machine.
func (s *slot) observe() {
	s.mu.Lock()
	defer s.mu.Unlock()
	ev := promotion.Event{Kind: promotion.Ticked}
	if c := s.candidate; c != nil {
		ev = promotion.Event{Kind: promotion.Observed, Generation: c.generation, Figures: c.compared}
		ev.Figures.Calls = c.stats().calls - c.before
	}
	_ = s.step(ev)
}

// try replays or compares what was recorded since the last time. The modules stay loaded
// meanwhile.
func (s *slot) try(ctx context.Context) {
	s.mu.Lock()
	m, active, inShadow := s.shadow, s.active, s.shadow != nil
	if !inShadow {
		m = s.candidate
	}
	if m == nil {
		s.mu.Unlock()
		return
	}
	m.inUse.Add(1)
	defer m.inUse.Done()
	if active != nil {
		active.inUse.Add(1)
		defer active.inUse.Done()
	}
	s.mu.Unlock()
	if inShadow {
		f, err := m.replay(ctx, active)
		if err != nil && ctx.Err() == nil {
			f.Faults++
			m.log.Warn("recorded call failed on a policy module in shadow", "err", err)
		}
		s.addFigures(m, f)
		return
	}
	f, err := m.compare(ctx, active)
	if err != nil && ctx.Err() == nil {
		m.log.Debug("canary answers were not compared", "err", err)
	}
	s.addFigures(m, f)
}

// addFigures adds the figures of a trial, if the module is still where it was tried.
func (s *slot) addFigures(m *module, f lifecycle.Figures) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch m {
	case s.shadow:
		s.figures.Add(f)
		_ = s.step(promotion.Event{Kind: promotion.Observed, Generation: m.generation, Figures: s.figures})
	case s.candidate:
		m.compared.Add(f)
	}
}
