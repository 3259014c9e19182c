package swap

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/wasm/promotion"
)

// Run builds, tries and frees modules until the context is done. Then the native
// policy takes over, and Run frees all modules and returns; the error says
// that calls had not returned in time, whose modules are left as they are, or
// what freeing one said. It is called once.
func (s *Slot[P]) Run(ctx context.Context) error {
	var group sync.WaitGroup
	group.Go(func() { s.build(ctx) })
	group.Go(func() { s.tryOut(ctx) })
	err := s.keep(ctx)
	group.Wait()
	return errors.Join(err, s.stop())
}

// keep looks at the gates, and closes what is idle.
func (s *Slot[P]) keep(ctx context.Context) error {
	tick := time.NewTicker(s.config.Tick)
	defer tick.Stop()
	drain := time.NewTimer(drainEvery)
	defer drain.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			s.look()
		case <-s.wake:
			drain.Reset(0)
		case <-drain.C:
			if left, err := s.closeIdle(); err != nil {
				s.config.Logger.Error("policy not freed", "err", err)
			} else if left > 0 {
				drain.Reset(drainEvery)
			}
		}
	}
}

// look tells the machine the time, and what the canary has shown.
func (s *Slot[P]) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.route.Load().candidate; c != nil {
		f := promotion.Figures{Calls: c.calls() - s.before, Compared: c.judged.compared.Load()} // first: who judges adds it last
		f.Differ, f.Worse = c.judged.differ.Load(), c.judged.worse.Load()
		_ = s.step(promotion.Event{Kind: promotion.Observed, Generation: c.generation, Figures: f})
		return
	}
	_ = s.step(promotion.Event{Kind: promotion.Ticked})
}

// closeIdle frees what no call is in, and returns how many are left.
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

// build does the machine's jobs, one after the other.
func (s *Slot[P]) build(ctx context.Context) {
	var c Candidate // what is compiled is what was verified, whatever is offered since
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-s.jobs:
			c = s.job(ctx, a, c)
		}
	}
}

// job does one job on a candidate, which it takes from the offers for the first
// and returns for the next.
func (s *Slot[P]) job(ctx context.Context, a promotion.Action, c Candidate) Candidate {
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
	s.forget()
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

// tryOut replays recorded calls on what is in shadow, and has what is in canary
// compared.
func (s *Slot[P]) tryOut(ctx context.Context) {
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
		l.stripes[0].word.Add(1) // in it, though no call of anybody's
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
		l.module.Logger.Warn("policy in shadow", "err", err)
	}
	s.note(l, f)
}

func (s *Slot[P]) compare(ctx context.Context, l *loaded[P]) {
	f, err := l.module.Compare(ctx)
	if err != nil && ctx.Err() == nil {
		l.module.Logger.Debug("policy in canary is not compared", "err", err)
	}
	s.Judge(l.generation, f)
}

// note adds what one replay has shown, if it is still wanted.
func (s *Slot[P]) note(l *loaded[P], f promotion.Figures) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shadow != l {
		return
	}
	t := &s.tried
	t.Calls, t.Faults, t.Differ, t.Worse, t.Compared = t.Calls+f.Calls, t.Faults+f.Faults, t.Differ+f.Differ, t.Worse+f.Worse, t.Compared+f.Compared
	_ = s.step(promotion.Event{Kind: promotion.Observed, Generation: l.generation, Figures: s.tried})
}

// stop takes all modules out and frees those that no call is in.
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
			return errors.Join(errs, fmt.Errorf("swap: calls are still in %d modules after %v", left, s.config.Stop))
		case <-time.After(drainEvery):
		}
	}
}
