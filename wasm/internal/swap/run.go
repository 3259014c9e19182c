package swap

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/promotion"
)

// Run builds, tries and frees modules until the context is done. Then the native
// policy takes over, and Run frees all modules and returns. The error is about calls
// that did not return in time, whose modules are left as they are, or about modules
// that could not be freed. It is called once.
func (s *Slot[P]) Run(ctx context.Context) error {
	var group sync.WaitGroup
	group.Go(func() { s.build(ctx) })
	group.Go(func() { s.runTrials(ctx) })
	err := s.runGates(ctx)
	group.Wait()
	return errors.Join(err, s.stop())
}

// runGates lets the machine check the gates, and closes idle modules.
func (s *Slot[P]) runGates(ctx context.Context) error {
	tick := time.NewTicker(s.config.Tick)
	defer tick.Stop()
	drain := time.NewTimer(drainEvery)
	defer drain.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			s.observe()
		case <-s.wake:
			drain.Reset(0)
		case <-drain.C:
			if left, err := s.closeIdle(); err != nil {
				s.config.Logger.Error("policy module was not freed", "err", err)
			} else if left > 0 {
				drain.Reset(drainEvery)
			}
		}
	}
}

// observe passes the time and the figures of the canary to the machine.
func (s *Slot[P]) observe() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.route.Load().candidate; c != nil {
		f := lifecycle.Figures{Calls: c.calls() - s.before, Compared: c.compared.all.Load()} // first: AddFigures adds it last
		f.Differ, f.Worse = c.compared.differ.Load(), c.compared.worse.Load()
		_ = s.step(promotion.Event{Kind: promotion.Observed, Generation: c.generation, Figures: f})
		return
	}
	_ = s.step(promotion.Event{Kind: promotion.Ticked})
}

// closeIdle frees the modules without calls in progress, and returns how many are
// left.
func (s *Slot[P]) closeIdle() (left int, err error) {
	s.mu.Lock()
	var idle []*loaded[P]
	rest := s.closing[:0]
	for _, l := range s.closing {
		if l.idle() {
			idle = append(idle, l)
		} else {
			rest = append(rest, l)
		}
	}
	clear(s.closing[len(rest):])
	s.closing = rest
	s.mu.Unlock()
	for _, l := range idle {
		if l.module.Close != nil {
			if e := l.module.Close(); e != nil {
				err = errors.Join(err, fmt.Errorf("close generation %d: %w", l.generation, e))
			}
		}
	}
	return len(rest), err
}

// build executes the machine's build jobs one after the other.
func (s *Slot[P]) build(ctx context.Context) {
	var c Candidate // what is compiled is what was verified, even if it was offered again since
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
func (s *Slot[P]) runJob(ctx context.Context, a promotion.Action, c Candidate) Candidate {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	s.cancel = cancel
	if a.Kind == promotion.Verify {
		c = s.offers[a.Generation]
		delete(s.offers, a.Generation)
	}
	l := s.modules[a.Generation]
	s.mu.Unlock()

	s.config.Build.Lock()
	done := promotion.Event{Generation: a.Generation}
	var made *loaded[P]
	err := ctx.Err()
	if err == nil {
		switch a.Kind {
		case promotion.Verify:
			done.Kind = promotion.Verified
			err = s.config.Loader.Verify(ctx, c)
		case promotion.Compile:
			done.Kind = promotion.Compiled
			made, err = s.compile(ctx, c)
		case promotion.Warm:
			done.Kind = promotion.Warmed
			if l.module.Warm != nil {
				err = l.module.Warm(ctx)
			}
		}
	}
	s.config.Build.Unlock()
	if err != nil {
		done.Kind, done.Reason = promotion.Failed, fmt.Sprintf("%s: %v", a.Kind, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancel = nil
	if made != nil {
		s.modules[a.Generation] = made
	}
	_ = s.step(done)
	s.dropOffers()
	if a.Kind != promotion.Verify {
		return Candidate{}
	}
	return c
}

func (s *Slot[P]) compile(ctx context.Context, c Candidate) (*loaded[P], error) {
	g := c.Generation
	m, err := s.config.Loader.Compile(ctx, c, func() { s.Fault(g) })
	if err != nil {
		return nil, err
	}
	if m.Logger == nil {
		m.Logger = s.config.Logger.With("kind", s.config.Machine.Kind.String(), "generation", uint64(g))
	}
	return &loaded[P]{generation: g, module: m, stripes: make([]stripe, s.stripes)}, nil
}

// runTrials replays recorded calls on the module in shadow, and compares the answers
// of the one in canary.
func (s *Slot[P]) runTrials(ctx context.Context) {
	tick := time.NewTicker(s.config.Tick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.mu.Lock()
		l := s.shadow
		inCanary := l == nil
		if inCanary {
			l = s.route.Load().candidate
		}
		if l == nil || !inCanary && l.module.Replay == nil || inCanary && l.module.Compare == nil {
			s.mu.Unlock()
			continue
		}
		l.stripes[0].word.Add(1) // keeps it loaded, and is not counted as a call
		s.mu.Unlock()
		if inCanary {
			s.compare(ctx, l)
		} else {
			s.replay(ctx, l)
		}
		l.stripes[0].word.Add(end)
	}
}

func (s *Slot[P]) replay(ctx context.Context, l *loaded[P]) {
	f, err := l.module.Replay(ctx)
	if err != nil && ctx.Err() == nil {
		f.Faults++
		l.module.Logger.Warn("recorded call failed on a policy module in shadow", "err", err)
	}
	s.addReplayed(l, f)
}

func (s *Slot[P]) compare(ctx context.Context, l *loaded[P]) {
	f, err := l.module.Compare(ctx)
	if err != nil && ctx.Err() == nil {
		l.module.Logger.Debug("canary answers were not compared", "err", err)
	}
	s.AddFigures(l.generation, f)
}

// addReplayed adds the figures of one replay, if the module is still in shadow.
func (s *Slot[P]) addReplayed(l *loaded[P], f lifecycle.Figures) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shadow != l {
		return
	}
	s.figures.Add(f)
	_ = s.step(promotion.Event{Kind: promotion.Observed, Generation: l.generation, Figures: s.figures})
}

// stop removes all modules from the route, and frees those without calls in progress.
func (s *Slot[P]) stop() error {
	s.mu.Lock()
	s.stopped, s.shadow = true, nil
	s.route.Store(&route[P]{})
	for g, l := range s.modules {
		delete(s.modules, g)
		s.closing = append(s.closing, l)
	}
	clear(s.offers)
	s.mu.Unlock()
	var errs error
	end := time.NewTimer(s.config.Stop)
	defer end.Stop()
	for {
		left, err := s.closeIdle()
		errs = errors.Join(errs, err)
		if left == 0 {
			return errs
		}
		select {
		case <-end.C:
			return errors.Join(errs, fmt.Errorf("swap: calls are still in progress in %d modules after %v", left, s.config.Stop))
		case <-time.After(drainEvery):
		}
	}
}
