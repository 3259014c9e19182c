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
	"github.com/cascadeinfer/cascade/wasm/promotion"
)

// Slot is a place where a policy decides. Its methods are safe for concurrent
// use, before, during and after Run; without Run nothing is built.
type Slot[P any] struct {
	// Fixed after New.
	config  Config[P]
	start   time.Time
	stripes int
	jobs    chan promotion.Action // for the builder; at most one is under way
	wake    chan struct{}         // something is to be closed

	route atomic.Pointer[route[P]]

	mu       sync.Mutex
	machine  *promotion.Machine
	actions  []promotion.Action // of the step in progress; kept for its memory
	stopped  bool
	offers   map[promotion.Generation]Candidate // nothing of them is built yet
	modules  map[promotion.Generation]*loaded[P]
	cancel   context.CancelFunc // of what is being built
	shadow   *loaded[P]
	tried    promotion.Figures // of shadow so far
	before   uint64            // calls of the candidate when this step of its canary began
	closing  []*loaded[P]
	lastGone promotion.Life
}

// New returns a slot that the native policy serves. The error names the bad
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
		offers: map[promotion.Generation]Candidate{}, modules: map[promotion.Generation]*loaded[P]{}}
	s.route.Store(&route[P]{})
	return s, nil
}

// Offer lets a module try its way up to its goal, or changes the goal of one that
// is on its way; see promotion.Offer. The error says why it is refused.
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
	s.forget()
	return err
}

// Withdraw gives a candidate up that nobody wants any more.
func (s *Slot[P]) Withdraw(g promotion.Generation) {
	s.event(promotion.Event{Kind: promotion.Withdrawn, Generation: g})
}

// RollBack takes a generation back, be it active, on its way, or kept as the
// previous one. When it returns, no Enter gives it.
func (s *Slot[P]) RollBack(g promotion.Generation, reason string) {
	s.event(promotion.Event{Kind: promotion.RolledBack, Generation: g, Reason: reason})
}

// Fault reports one call that a generation's module did not answer: what modules
// do by the function that Loader.Compile gives them.
func (s *Slot[P]) Fault(g promotion.Generation) {
	s.event(promotion.Event{Kind: promotion.Faulted, Generation: g})
}

// Judge adds what was found out about a generation's answers in canary: how many
// were compared with what the active one says, how many of those differ, and how
// many are worse. It takes no lock.
func (s *Slot[P]) Judge(g promotion.Generation, f promotion.Figures) {
	r := s.route.Load()
	if l := r.candidate; l != nil && l.generation == g {
		l.judged.differ.Add(f.Differ)
		l.judged.worse.Add(f.Worse)
		l.judged.compared.Add(f.Compared)
	}
}

// Status tells of the slot; times count from its beginning.
func (s *Slot[P]) Status() promotion.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine.Status()
}

// Begin is the time from which Status counts.
func (s *Slot[P]) Begin() time.Time { return s.start }

// Loaded returns the policies of the modules that are loaded, by generation. A
// policy may be freed at any time after: it may be asked what it counts, and is
// not to be called.
func (s *Slot[P]) Loaded() map[promotion.Generation]P {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[promotion.Generation]P, len(s.modules))
	for g, l := range s.modules {
		all[g] = l.module.Policy
	}
	return all
}

func (s *Slot[P]) event(ev promotion.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.step(ev) // only offers are refused
	s.forget()
}

// forget drops the bytes of offers that have ended. The lock is held.
func (s *Slot[P]) forget() {
	if len(s.offers) == 0 {
		return
	}
	wanted := map[promotion.Generation]bool{}
	for _, l := range s.machine.Status().Lives {
		wanted[l.Generation] = wanted[l.Generation] || l.State <= promotion.Verifying
	}
	for g := range s.offers {
		if !wanted[g] {
			delete(s.offers, g)
		}
	}
}

// step lets the machine decide, and does it. The lock is held.
func (s *Slot[P]) step(ev promotion.Event) error {
	ev.Now = policies.Micros(s.config.Now().Sub(s.start) / time.Microsecond)
	actions, err := s.machine.Step(ev, s.actions[:0])
	s.actions = actions
	for _, a := range actions {
		s.do(a)
	}
	if len(actions) > 0 {
		s.tell()
	}
	if len(actions) > 0 || ev.Kind != promotion.Ticked && ev.Kind != promotion.Observed {
		s.config.Changed()
	}
	return err
}

// do begins an action.
func (s *Slot[P]) do(a promotion.Action) {
	g := a.Generation
	switch a.Kind {
	case promotion.Verify, promotion.Compile, promotion.Warm:
		s.jobs <- a // the one before is done: there is room
	case promotion.Cancel:
		if s.cancel != nil {
			s.cancel()
		}
	case promotion.Shadow:
		s.shadow, s.tried = s.modules[g], promotion.Figures{}
	case promotion.Switch:
		old := s.route.Load()
		r := &route[P]{a.Route, s.modules[a.Route.Active], s.modules[a.Route.Candidate]}
		s.route.Store(r)
		if c := r.candidate; c != nil && (old.candidate != c || old.Permille != r.Permille || old.Scope != r.Scope) {
			s.before = c.calls()
			c.judged.compared.Store(0)
			c.judged.differ.Store(0)
			c.judged.worse.Store(0)
		}
	case promotion.Close:
		if l := s.modules[g]; l != nil {
			delete(s.modules, g)
			s.closing = append(s.closing, l)
			s.nudge()
		}
	}
}

// nudge wakes the closer.
func (s *Slot[P]) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// tell logs what became of the last step. The lock is held; the logger's handler
// should not be slow.
func (s *Slot[P]) tell() {
	for _, a := range s.actions {
		if a.Kind == promotion.Switch {
			s.config.Logger.Info("policy switched", "kind", s.config.Machine.Kind.String(), "active", uint64(a.Route.Active),
				"candidate", uint64(a.Route.Candidate), "permille", a.Route.Permille, "scope", a.Route.Scope)
		}
	}
	for _, l := range s.machine.Status().Lives {
		if l.State < promotion.Rejected {
			continue
		}
		if l.Generation != s.lastGone.Generation || l.State != s.lastGone.State || l.Since != s.lastGone.Since {
			s.lastGone = l
			level := slog.LevelInfo
			if l.State == promotion.Rejected {
				level = slog.LevelWarn
			}
			s.config.Logger.Log(context.Background(), level, "policy ended", "kind", s.config.Machine.Kind.String(),
				"generation", uint64(l.Generation), "state", l.State.String(), "reason", l.Reason)
		}
		return // the latest is first
	}
}
