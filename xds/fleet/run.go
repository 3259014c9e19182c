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

// Run drives the fleet until ctx ends, and then returns nil. An error means that the
// stored plan cannot be read at the start: an operator must inspect it before it is
// overwritten. Run is called once.
func (f *Fleet) Run(ctx context.Context) error {
	defer close(f.done)
	watch, stopWatch := context.WithCancel(ctx)
	defer stopWatch()
	updates := f.cfg.Store.Watch(watch)
	defer func() {
		stopWatch()
		for range updates { // the store closes the channel when the watch has ended
		}
	}()
	if err := f.restore(ctx, updates); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	saver := newSaver(f)
	defer saver.stop()

	ticker := time.NewTicker(min(max(f.state.rules.Period/4, minTick), maxTick))
	defer ticker.Stop()
	save := time.NewTicker(saveInterval)
	defer save.Stop()
	var proxiesAt time.Time // of the last reports of the proxies
	f.updates = updates
	for {
		select {
		case <-ctx.Done():
			f.stepDown(ctx)
			return nil
		case now := <-ticker.C:
			if f.cfg.Proxies != nil && now.Sub(proxiesAt) >= weighInterval {
				proxiesAt = now
				f.step(ctx, now, ProxiesReported{f.cfg.Proxies.Loads(now)})
			}
			f.step(ctx, now, Tick{})
			f.latest.Store(f.state.Snapshot(now))
		case <-f.replicasChanged:
			f.step(ctx, time.Now(), Replicas{f.configuredReplicas()})
		case <-f.refusedChanged:
			f.step(ctx, time.Now(), f.takeRefusals())
		case m := <-f.events:
			f.handleMessage(ctx, m)
		case u, ok := <-f.updates:
			if !ok {
				f.updates = nil // never ready: the watch has ended, and ctx ends soon
				continue
			}
			f.handleUpdate(ctx, u)
		case now := <-save.C:
			saver.save(now)
		}
	}
}

// restore applies the state that an earlier process stored, then the configured
// replicas.
func (f *Fleet) restore(ctx context.Context, updates <-chan store.Update) error {
	data, err := f.cfg.Counters.Load()
	if err == nil && len(data) > 0 {
		err = f.state.RestoreCounters(data)
	}
	if err != nil {
		f.log.Warn("counters of the last run not restored, counting anew", "error", err)
	}
	select {
	case u, ok := <-updates:
		switch {
		case !ok:
			return errors.New("fleet: the watch of the plan store ended")
		case u.Err != nil:
			return fmt.Errorf("fleet: read the stored plan: %w", u.Err)
		}
		f.version = u.Version
		f.step(ctx, time.Now(), Stored{u.Object})
	case <-ctx.Done():
		return ctx.Err()
	}
	select { // a list that was set before Run is applied below
	case <-f.replicasChanged:
	default:
	}
	f.step(ctx, time.Now(), Replicas{f.configuredReplicas()})
	f.latest.Store(f.state.Snapshot(time.Now()))
	return nil
}

// step steps the state and carries the effects out. It returns the error if the first
// proposal was not stored. If ev is an order, that proposal contains it.
func (f *Fleet) step(ctx context.Context, now time.Time, ev Event) (first error) {
	led := f.state.leads(now)
	e := f.state.Step(now, ev)
	for n := 0; e.Propose != nil; n++ {
		answer, err := f.store(ctx, e.Propose)
		if n == 0 {
			first = err
		}
		now = time.Now() // storing may have taken a while
		e = f.state.Step(now, answer)
	}
	f.announceSlots()
	if e.Publish != nil {
		f.latest.Store(e.Publish)
		f.cfg.Publisher.Publish(e.Publish)
	}
	if leading := f.state.leads(now); leading != led {
		f.logLeadership(now, leading)
	}
	return first
}

func (f *Fleet) logLeadership(now time.Time, leading bool) {
	if leading {
		f.log.Info("became the leader, planning for the fleet", "name", f.cfg.Name)
		return
	}
	f.log.Warn("lost the lease, following the leader", "name", f.cfg.Name, "leader", f.state.leadership(now).Holder)
}

// store writes a proposal and returns the resulting event, and the error if it was
// not stored.
func (f *Fleet) store(ctx context.Context, p *Proposal) (Event, error) {
	timeout := storeTimeout
	if p.withLease {
		timeout = leaseTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	version, err := f.cfg.Store.CompareAndSwap(ctx, f.version, p.Object)
	switch {
	case errors.Is(err, store.ErrConflict) && f.cfg.Shared:
		f.log.Debug("another control plane wrote first", "error", err)
		return NotStored{}, err
	case err != nil:
		if f.logLimiter.Allow("plan: "+stableText(err), time.Now()) {
			f.log.Warn("plan not stored, the last one stays in force", "epoch", p.Object.Epoch, "error", err)
		}
		return NotStored{}, err
	}
	f.version, f.unconfirmed = version, append(f.unconfirmed, version)
	for _, c := range p.Changes {
		f.log.Info("new plan stored", "model", c.Model, "epoch", c.Epoch, "stages", len(c.Stages), "reason", c.Reason)
	}
	return Stored{p.Object}, nil
}

// stableText returns the part of a store's error that is the same when the same
// cause occurs again: the names of temporary files differ.
func stableText(err error) string {
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

// stepDown releases the lease, so that another control plane leads at once.
func (f *Fleet) stepDown(ctx context.Context) {
	o, ok := f.state.StepDown(time.Now())
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepDownTimeout)
	defer cancel()
	if _, err := f.cfg.Store.CompareAndSwap(ctx, f.version, o); err != nil {
		f.log.Debug("lease not given up, it expires by itself", "error", err)
	}
}

// handleUpdate applies an update of the store's watch. The watch may have read a
// version that was written here before the next one was written, and deliver it after
// that: going back to it would make every later write a conflict. The watch delivers
// versions in the order in which they were stored, and merges some, so one of our
// versions also confirms the earlier ones.
func (f *Fleet) handleUpdate(ctx context.Context, u store.Update) {
	if u.Err != nil {
		f.log.Error("stored plan cannot be read, the last one stays in force", "error", u.Err)
		return
	}
	if i := slices.Index(f.unconfirmed, u.Version); i >= 0 {
		f.unconfirmed = slices.Delete(f.unconfirmed, 0, i+1)
		return
	}
	if u.Version == f.version {
		return
	}
	f.version, f.unconfirmed = u.Version, nil
	f.step(ctx, time.Now(), Stored{u.Object})
}

// handleMessage steps the state with a report, the end of a report stream or an order,
// and replies to it.
func (f *Fleet) handleMessage(ctx context.Context, m message) {
	now := time.Now()
	switch ev := m.event.(type) {
	case Ordered:
		m.reply <- answer{err: f.obey(ctx, ev.Order)}
	case Reported:
		if err := f.state.CheckReport(ev.Report); err != nil {
			m.reply <- answer{err: status.Error(codes.NotFound, "load report: "+err.Error())}
			return
		}
		id := ev.Report.Replica
		f.mu.Lock()
		f.migrations.Add(now, ev.Report.Migrations)
		f.slotReports[id] = policyslots.Report{Node: string(id), At: now, Statuses: ev.Report.Slots}
		f.mu.Unlock()
		ev.Report.Migrations, ev.Report.Slots = nil, nil // the State does not use them
		f.step(ctx, now, ev)
		reply, _ := f.state.Reply(id)
		m.reply <- answer{reply: reply}
	default:
		f.step(ctx, now, m.event)
	}
}
