package fleet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Run drives the fleet until ctx ends, and then returns nil. An error means
// that the stored plan cannot be read at the start: going on would overwrite
// what an operator has to look at first. Run is called once.
func (f *Fleet) Run(ctx context.Context) error {
	defer close(f.done)
	watch, stopWatch := context.WithCancel(ctx)
	defer stopWatch()
	updates := f.cfg.Store.Watch(watch)
	defer func() {
		stopWatch()
		for range updates { // the channel closes when nothing of the watch is left
		}
	}()
	if err := f.begin(ctx, updates); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	saver := newSaver(f)
	defer saver.stop()

	ticker := time.NewTicker(min(max(f.state.rules.Period/4, minTick), maxTick))
	defer ticker.Stop()
	save := time.NewTicker(saveEvery)
	defer save.Stop()
	var asked time.Time // when the proxies' word was last taken in
	f.news = updates
	for {
		select {
		case <-ctx.Done():
			f.resign(ctx)
			return nil
		case now := <-ticker.C:
			if f.cfg.Proxies != nil && now.Sub(asked) >= weighEvery {
				asked = now
				f.step(ctx, now, Proxied{f.cfg.Proxies.Seen(now)})
			}
			f.step(ctx, now, Tick{})
			f.latest.Store(f.state.Snapshot(now))
		case <-f.changed:
			f.step(ctx, time.Now(), Replicas{f.configured()})
		case <-f.barred:
			f.step(ctx, time.Now(), f.barring())
		case m := <-f.events:
			f.handle(ctx, m)
		case u, ok := <-f.news:
			if !ok {
				f.news = nil // never ready: the watch is over, and so soon is ctx
				continue
			}
			f.update(ctx, u)
		case now := <-save.C:
			saver.save(now)
		}
	}
}

// begin takes in what a former life left, then the configured replicas.
func (f *Fleet) begin(ctx context.Context, updates <-chan store.Update) error {
	data, err := f.cfg.Counters.Load()
	if err == nil && len(data) > 0 {
		err = f.state.Restore(time.Now(), data)
	}
	if err != nil {
		f.log.Warn("counters of the last run are lost; counting anew", "error", err)
	}
	select {
	case u, ok := <-updates:
		switch {
		case !ok:
			return errors.New("fleet: the plan store ended its watch")
		case u.Err != nil:
			return fmt.Errorf("fleet: stored plan: %w", u.Err)
		}
		f.version = u.Version
		f.step(ctx, time.Now(), Stored{u.Object})
	case <-ctx.Done():
		return ctx.Err()
	}
	select { // a list that was set before Run is the configured one
	case <-f.changed:
	default:
	}
	f.step(ctx, time.Now(), Replicas{f.configured()})
	f.latest.Store(f.state.Snapshot(time.Now()))
	return nil
}

// step steps the state and carries the effects out. It returns why the first
// proposal that followed was not stored, which is the one with the order where ev
// is one.
func (f *Fleet) step(ctx context.Context, now time.Time, ev Event) (first error) {
	led := f.state.plans(now)
	e := f.state.Step(now, ev)
	for n := 0; e.Propose != nil; n++ {
		answer, err := f.store(ctx, e.Propose)
		if n == 0 {
			first = err
		}
		now = time.Now() // the store may have taken its time
		e = f.state.Step(now, answer)
	}
	f.tellSlots()
	if e.Publish != nil {
		f.latest.Store(e.Publish)
		f.cfg.Publisher.Publish(e.Publish)
	}
	if leads := f.state.plans(now); leads != led {
		f.lead(now, leads)
	}
	return first
}

// lead logs who plans.
func (f *Fleet) lead(now time.Time, leads bool) {
	if leads {
		f.log.Info("this control plane plans for the fleet from now on", "name", f.cfg.Name)
		return
	}
	f.log.Warn("this control plane does not plan any more, and follows", "name", f.cfg.Name, "planner", f.state.planner(now).Holder)
}

// store writes a proposal and returns what came of it, and the error if it was
// not stored.
func (f *Fleet) store(ctx context.Context, p *Proposal) (Event, error) {
	timeout := storeTimeout
	if p.lease {
		timeout = leaseTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	version, err := f.cfg.Store.CompareAndSwap(ctx, f.version, p.Object)
	switch {
	case errors.Is(err, store.ErrConflict) && f.cfg.Shared:
		f.log.Debug("another control plane wrote first", "error", err)
		return Refused{}, err
	case err != nil:
		// A conflict brings the other's plan by the watch; both wait a moment.
		if f.unsaid.Allow("plan: "+reason(err), time.Now()) {
			f.log.Warn("plan not stored; the last one stays in force", "epoch", p.Object.Epoch, "error", err)
		}
		return Refused{}, err
	}
	f.version, f.untold = version, append(f.untold, version)
	for _, c := range p.Changes {
		f.log.Info("new plan", "model", c.Model, "epoch", c.Epoch, "stages", len(c.Stages), "reason", c.Reason)
	}
	return Stored{p.Object}, nil
}

// reason is what an error of a store has in common with the next one of the same
// cause: the names of temporary files change.
func reason(err error) string {
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &path):
		return path.Op + ": " + path.Err.Error()
	case errors.As(err, &link):
		return link.Op + ": " + link.Err.Error()
	}
	return err.Error()
}

// resign lets another control plane plan at once.
func (f *Fleet) resign(ctx context.Context) {
	o, ok := f.state.Resign(time.Now())
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resignTimeout)
	defer cancel()
	if _, err := f.cfg.Store.CompareAndSwap(ctx, f.version, o); err != nil {
		f.log.Debug("the planning lease runs out by itself", "error", err)
	}
}

// update takes in what the store's watch tells. The watch may have read a
// version of ours before we wrote the next one, and tell it after that: going
// back to it would make every later write a conflict. The watch tells versions
// in the order in which they were stored, and merges some, so a version of ours
// that it tells ends the wait for those before it too.
func (f *Fleet) update(ctx context.Context, u store.Update) {
	if u.Err != nil {
		f.log.Error("stored plan cannot be read; the last one stays in force", "error", u.Err)
		return
	}
	if i := slices.Index(f.untold, u.Version); i >= 0 {
		f.untold = slices.Delete(f.untold, 0, i+1)
		return
	}
	if u.Version == f.version {
		return
	}
	f.version, f.untold = u.Version, nil
	f.step(ctx, time.Now(), Stored{u.Object})
}

// handle steps a message of a report stream or an operator's, and answers it.
func (f *Fleet) handle(ctx context.Context, m message) {
	now := time.Now()
	r, isReport := m.event.(Reported)
	switch {
	case !isReport && m.reply != nil:
		m.reply <- answer{err: f.obey(ctx, m.event)}
		return
	case !isReport:
		f.step(ctx, now, m.event)
		return
	}
	if err := f.state.Admits(r.Report); err != nil {
		m.reply <- answer{err: status.Error(codes.NotFound, "load report: "+err.Error())}
		return
	}
	f.mu.Lock()
	f.moves.take(now, r.Report.Moves)
	f.hosts[r.Report.Replica] = policyslots.Report{Node: string(r.Report.Replica), At: now, Statuses: r.Report.Policies}
	f.mu.Unlock()
	r.Report.Moves, r.Report.Policies = nil, nil // the State has no use for them
	f.step(ctx, now, r)
	reply, _ := f.state.Reply(r.Report.Replica)
	m.reply <- answer{reply: reply.encode(r.Report.Sequence)}
}

// saver writes the counters in a goroutine of its own: a slow disk does not
// hold up the loop. A write that comes while one is going on is left out.
type saver struct {
	fleet *Fleet
	work  chan []byte
	done  chan struct{}
}

func newSaver(f *Fleet) *saver {
	s := &saver{fleet: f, work: make(chan []byte, 1), done: make(chan struct{})}
	go s.run()
	return s
}

func (s *saver) run() {
	defer close(s.done)
	for data := range s.work {
		if err := s.fleet.cfg.Counters.Save(data); err != nil && s.fleet.unsaid.Allow("counters: "+reason(err), time.Now()) {
			s.fleet.log.Warn("counters not saved; a restart would count anew", "error", err)
		}
	}
}

// save encodes the counters as they are and hands them over. Called by the
// loop alone.
func (s *saver) save(now time.Time) {
	if data := s.encode(now); data != nil {
		select {
		case s.work <- data:
		default:
		}
	}
}

func (s *saver) encode(now time.Time) []byte {
	data, err := s.fleet.state.Counters(now)
	if err != nil {
		s.fleet.log.Warn("counters not saved", "error", err)
		return nil
	}
	return data
}

// stop writes the counters a last time and waits for it.
func (s *saver) stop() {
	if data := s.encode(time.Now()); data != nil {
		s.work <- data
	}
	close(s.work)
	<-s.done
}
