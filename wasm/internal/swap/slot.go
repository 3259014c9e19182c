package swap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/promotion"
)

// Slot serves the policy of one kind. Its methods are safe for concurrent use,
// before, during and after Run; without Run nothing is built.
type Slot[P any] struct {
	// Fixed after New.
	config  Config[P]
	start   time.Time // Unix time in machine events is start plus the monotonic time since then
	stripes int
	jobs    chan promotion.Action // for the builder; at most one is in progress
	wake    chan struct{}         // a module is to be closed

	route atomic.Pointer[route[P]]

	mu        sync.Mutex
	machine   *promotion.Machine
	actions   []promotion.Action // of the step in progress; kept for its memory
	stopped   bool
	offers    map[lifecycle.Generation]Candidate // not built yet
	modules   map[lifecycle.Generation]*loaded[P]
	cancel    context.CancelFunc // of what is being built
	shadow    *loaded[P]
	figures   lifecycle.Figures // of the module in shadow so far
	before    uint64            // calls of the candidate when this step of its canary began
	closing   []*loaded[P]
	lastEnded lifecycle.Status // the last ended generation that was logged
}

// New returns a slot that is served by the native policy. The error names the bad
// field.
func New[P any](config Config[P]) (*Slot[P], error) {
	config, err := config.complete()
	if err != nil {
		return nil, fmt.Errorf("swap: %w", err)
	}
	m, err := promotion.New(config.Machine)
	if err != nil {
		return nil, err
	}
	s := &Slot[P]{config: config, start: config.Now(), stripes: runtime.GOMAXPROCS(0), machine: m,
		jobs: make(chan promotion.Action, 1), wake: make(chan struct{}, 1),
		offers: map[lifecycle.Generation]Candidate{}, modules: map[lifecycle.Generation]*loaded[P]{}}
	s.route.Store(&route[P]{})
	return s, nil
}

// Offer starts the promotion of a module to its goal, or changes the goal of one that
// is being promoted; see promotion.Offer. The error is why the offer is refused.
func (s *Slot[P]) Offer(c Candidate) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errors.New("swap: the slot has stopped")
	}
	if _, ok := s.offers[c.Generation]; !ok {
		s.offers[c.Generation] = c
	}
	err := s.step(promotion.Event{Kind: promotion.Offered, Offer: c.Offer})
	s.dropOffers()
	return err
}

// Withdraw ends a candidate that is no longer wanted.
func (s *Slot[P]) Withdraw(g lifecycle.Generation) {
	s.handle(promotion.Event{Kind: promotion.Withdrawn, Generation: g})
}

// RollBack ends a generation, be it active, a candidate, or the previous one. When it
// returns, Enter returns the generation no more.
func (s *Slot[P]) RollBack(g lifecycle.Generation, reason string) {
	s.handle(promotion.Event{Kind: promotion.RolledBack, Generation: g, Reason: reason})
}

// Fault reports one call that the module of a generation did not answer. Modules call
// it through the function that Loader.Compile gets.
func (s *Slot[P]) Fault(g lifecycle.Generation) {
	s.handle(promotion.Event{Kind: promotion.Faulted, Generation: g})
}

// AddFigures adds Compared, Differ and Worse of answers that a generation gave in
// canary. It takes no lock.
func (s *Slot[P]) AddFigures(g lifecycle.Generation, f lifecycle.Figures) {
	r := s.route.Load()
	if l := r.candidate; l != nil && l.generation == g {
		l.compared.differ.Add(f.Differ)
		l.compared.worse.Add(f.Worse)
		l.compared.all.Add(f.Compared)
	}
}

// Status returns the state of the slot, with what the machine knows of its modules.
func (s *Slot[P]) Status() lifecycle.SlotStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine.Status()
}

// Loaded returns the policies of the loaded modules, by generation. A policy may be
// freed at any time after that: the caller may read its counters, and must not ask it
// for decisions.
func (s *Slot[P]) Loaded() map[lifecycle.Generation]P {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[lifecycle.Generation]P, len(s.modules))
	for g, l := range s.modules {
		all[g] = l.module.Policy
	}
	return all
}

// handle lets the machine handle an event that it cannot refuse.
func (s *Slot[P]) handle(ev promotion.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.step(ev) // only offers are refused
	s.dropOffers()
}

// dropOffers drops the bytes of offers that have ended. The lock is held.
func (s *Slot[P]) dropOffers() {
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

// step lets the machine handle an event, and executes its actions. The lock is held.
func (s *Slot[P]) step(ev promotion.Event) error {
	ev.Now = policies.Micros(s.start.UnixMicro()) + policies.Micros(s.config.Now().Sub(s.start)/time.Microsecond)
	actions, err := s.machine.Step(ev, s.actions[:0])
	s.actions = actions
	for _, a := range actions {
		s.execute(a)
	}
	if len(actions) > 0 {
		s.log()
	}
	if len(actions) > 0 || ev.Kind != promotion.Ticked && ev.Kind != promotion.Observed {
		s.config.Changed()
	}
	return err
}

// execute executes an action, or starts it.
func (s *Slot[P]) execute(a promotion.Action) {
	g := a.Generation
	switch a.Kind {
	case promotion.Verify, promotion.Compile, promotion.Warm:
		s.jobs <- a // does not block: the job before it has ended
	case promotion.Cancel:
		if s.cancel != nil {
			s.cancel()
		}
	case promotion.Shadow:
		s.shadow, s.figures = s.modules[g], lifecycle.Figures{}
	case promotion.Switch:
		old := s.route.Load()
		r := &route[P]{a.Route, s.modules[a.Route.Active], s.modules[a.Route.Candidate]}
		s.route.Store(r)
		if c := r.candidate; c != nil && (old.candidate != c || old.Permille != r.Permille || old.Scope != r.Scope) {
			s.before = c.calls()
			c.compared.all.Store(0)
			c.compared.differ.Store(0)
			c.compared.worse.Store(0)
		}
	case promotion.Close:
		if l := s.modules[g]; l != nil {
			delete(s.modules, g)
			s.closing = append(s.closing, l)
			s.wakeCloser()
		}
	}
}

// wakeCloser makes Run look for modules to close.
func (s *Slot[P]) wakeCloser() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// log logs the results of the last step. The lock is held; the logger's handler
// should not be slow.
func (s *Slot[P]) log() {
	for _, a := range s.actions {
		if a.Kind == promotion.Switch {
			s.config.Logger.Info("policy switched", "kind", s.config.Machine.Kind.String(), "active", uint64(a.Route.Active),
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
			s.config.Logger.Log(context.Background(), level, "policy ended", "kind", s.config.Machine.Kind.String(),
				"generation", uint64(l.Generation), "phase", l.Phase.String(), "reason", l.Reason)
		}
		return // the latest is first
	}
}
