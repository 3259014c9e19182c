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
)

// slot is the slot of one kind: it builds, tries and frees the modules of a machine, and
// knows which module decides a call.
type slot struct {
	// Fixed after New.
	host   *Slots
	kind   abi.Kind
	name   lifecycle.Kind
	native Native
	every  int                    // the recording rate
	clock  func() policies.Micros // the time that modules see
	start  time.Time              // the machine's time is start plus the monotonic time since then
	log    *slog.Logger
	jobs   chan lifecycle.Candidate // to build; at most one is in progress

	own *records // of the native policy

	// The route, and the modules that it names; nil for the native policy. A call holds
	// the lock only while it chooses its module.
	routing           sync.RWMutex
	route             route
	active, candidate *module

	mu        sync.Mutex // guards the fields below; taken before routing
	machine   *machine
	history   history
	next      *desired // to be put in force once it is written; nil for none
	unwritten error    // why it could not be written
	refusal   string   // why the newest spec is refused
	stopped   bool
	modules   map[lifecycle.Generation]*module // warm
	shadow    *module
	figures   lifecycle.Figures // of the module in shadow so far
	closing   sync.WaitGroup
	failed    error            // of modules that could not be freed
	lastEnded lifecycle.Status // the last ended generation that was logged

	// stable reports whether the desired state has a stable module.
	stable atomic.Bool

	scopesMu sync.Mutex
	scopes   map[string]*memory // guarded by scopesMu
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
	machine, err := newMachine(slotKind(k), gates)
	if err != nil {
		return nil, fmt.Errorf("gates of %s: %w", k, err)
	}
	return &slot{
		host: s, kind: k, name: slotKind(k), native: c.Native, every: every, clock: clock, start: c.Now(),
		log: c.Logger.With("kind", k.String()), jobs: make(chan lifecycle.Candidate, 1), machine: machine,
		own: newRecords(every, perRequest(k), clock), scopes: map[string]*memory{}, modules: map[lifecycle.Generation]*module{},
		history: h,
	}, nil
}

// compared returns how many answers must be compared in a step of a canary: half of
// those that will be recorded while the step gets the calls that its gate asks for.
func compared(k abi.Kind, calls uint64, every int) uint64 {
	switch {
	case every == 0: // nothing is recorded
		return 0
	case calls == 0 && perRequest(k):
		calls = DefaultCanaryCalls
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
	group.Go(func() { s.runTrials(ctx) })
	for done := false; !done; {
		select {
		case <-ctx.Done():
			done = true
		case c := <-s.jobs:
			s.build(ctx, c)
		}
	}
	group.Wait()
	s.mu.Lock()
	s.stopped, s.shadow = true, nil
	s.setRoute(route{})
	for g := range s.modules {
		s.free(g)
	}
	s.mu.Unlock()
	s.closing.Wait()
	return s.failed
}

// fault reports one call that the module of a generation did not answer, and why.
func (s *slot) fault(g lifecycle.Generation, why error) {
	s.step(func(m *machine) { m.fault(g, why.Error()) })
}

// state returns the state of the slot, with what the machine knows of its modules.
func (s *slot) state() lifecycle.SlotStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine.slotStatus()
}

// step changes the machine and puts in force what follows: when it returns, no call gets a
// module that has ended. It returns false after the end of run, when the machine does not
// matter any more.
func (s *slot) step(change func(*machine)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return false
	}
	m := s.machine
	m.now = max(m.now, s.now())
	change(m)
	if !m.advance() {
		return true
	}
	if r := m.route(); r != s.route {
		sameTrial := r.candidate == s.route.candidate && r.permille == s.route.permille && r.scope == s.route.scope
		s.setRoute(r)
		if c := s.candidate; c != nil && !sameTrial { // a step of its canary begins
			c.before, c.compared = c.called(), lifecycle.Figures{}
		}
		s.log.Info("policy switched", "active", uint64(r.active), "candidate", uint64(r.candidate), "permille", r.permille, "scope", r.scope)
	}
	if shadow := s.modules[m.shadow()]; shadow != s.shadow {
		s.shadow, s.figures = shadow, lifecycle.Figures{}
	}
	for g := range s.modules {
		if m.find(g) == nil {
			s.free(g)
		}
	}
	if c, ok := m.beginBuild(); ok {
		s.jobs <- c // does not block: the build before it has ended
	}
	s.logEnded()
	s.host.changed()
	return true
}

// now returns the machine's time.
func (s *slot) now() policies.Micros {
	return policies.Micros(s.start.UnixMicro()) + policies.Micros(s.host.config.Now().Sub(s.start)/time.Microsecond)
}

// setRoute puts a route in force. The lock is held.
func (s *slot) setRoute(r route) {
	s.routing.Lock()
	defer s.routing.Unlock()
	s.route, s.active, s.candidate = r, s.modules[r.active], s.modules[r.candidate]
}

// free closes a module that no route names any more, once its last call has returned. The
// lock is held.
func (s *slot) free(g lifecycle.Generation) {
	m := s.modules[g]
	delete(s.modules, g)
	s.keepCounts(m)
	s.closing.Go(func() {
		m.inUse.Wait()
		err := m.close()
		if err != nil {
			s.log.Error("policy module was not freed", "generation", uint64(g), "err", err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.failed = errors.Join(s.failed, err)
		s.keepCounts(m) // with its last calls
	})
}

// keepCounts keeps the counts of a module that has ended. The lock is held.
func (s *slot) keepCounts(m *module) {
	for i := range s.machine.ended { // the latest is first
		if e := &s.machine.ended[i]; e.Generation == m.generation {
			m.addCounts(e)
			return
		}
	}
}

// logEnded logs the last generation that ended. The lock is held; the logger's handler
// should not be slow.
func (s *slot) logEnded() {
	if len(s.machine.ended) == 0 {
		return
	}
	l := s.machine.ended[0]
	which := lifecycle.Status{Generation: l.Generation, Phase: l.Phase, SinceUnixMillis: l.SinceUnixMillis}
	if which == s.lastEnded {
		return
	}
	s.lastEnded = which
	level := slog.LevelInfo
	if l.Phase == lifecycle.Rejected {
		level = slog.LevelWarn
	}
	s.log.Log(context.Background(), level, "policy ended",
		"generation", uint64(l.Generation), "phase", l.Phase.String(), "reason", l.Reason)
}

// build builds a module. One module is built at a time in this process.
func (s *slot) build(ctx context.Context, c lifecycle.Candidate) {
	s.host.building.Lock()
	m, err := s.load(ctx, c)
	s.host.building.Unlock()
	failure := ""
	if err != nil {
		failure = err.Error()
	}
	used := false
	s.step(func(k *machine) {
		if used = k.endBuild(failure); used {
			s.modules[c.Generation] = m
		}
	})
	if m != nil && !used {
		if err := m.close(); err != nil {
			s.log.Error("policy module was not freed", "generation", uint64(c.Generation), "err", err)
		}
	}
}

// load verifies, compiles and warms a module, and ends between two of these steps when the
// module is not wanted any more.
func (s *slot) load(ctx context.Context, c lifecycle.Candidate) (*module, error) {
	next := func(p lifecycle.Phase) error {
		wanted := false
		s.step(func(k *machine) { wanted = k.continueBuild(p) })
		if !wanted {
			return errors.New("it is not wanted any more")
		}
		return ctx.Err()
	}
	if err := next(lifecycle.Verifying); err != nil {
		return nil, err
	}
	if err := s.verify(c); err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	if err := next(lifecycle.Compiling); err != nil {
		return nil, err
	}
	m, err := s.compile(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("compile: %w", err)
	}
	if err = next(lifecycle.Warming); err == nil {
		if err = m.warm(ctx); err != nil {
			err = fmt.Errorf("warm: %w", err)
		}
	}
	if err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
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
			s.step(func(m *machine) {
				if c := s.candidate; c != nil {
					f := c.compared
					f.Calls = c.called() - c.before
					m.observe(c.generation, f, "")
				}
			})
			s.try(ctx)
		}
	}
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
		why := ""
		if err != nil && ctx.Err() == nil {
			f.Faults++
			why = err.Error()
			m.log.Warn("recorded call failed on a policy module in shadow", "err", err)
		}
		s.addFigures(m, f, why)
		return
	}
	f, err := m.compare(ctx, active)
	if err != nil && ctx.Err() == nil {
		m.log.Debug("canary answers were not compared", "err", err)
	}
	s.addFigures(m, f, "")
}

// addFigures adds the figures of a trial, if the module is still where it was tried. why is
// the fault among them, "" for none.
func (s *slot) addFigures(m *module, f lifecycle.Figures, why string) {
	s.step(func(k *machine) {
		switch m {
		case s.shadow:
			s.figures.Add(f)
			k.observe(m.generation, s.figures, why)
		case s.candidate:
			m.compared.Add(f)
		}
	})
}
