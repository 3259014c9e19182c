package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/policies/balance"
	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Run drives the fleet until ctx ends, and then returns nil. An error means that the
// stored plan cannot be read at the start: an operator must inspect it before it is
// overwritten. A store that does not answer then is waited for. Run is called once.
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
	defer func() { // modules and rules end by their own limits
		if p := f.state.planning; p != nil && !p.ran {
			<-f.planned
		}
	}()

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
		case <-ticker.C:
			f.handleQueued(ctx)
			now := time.Now() // the ticker's time is old if the loop was late
			if f.cfg.Proxies != nil && now.Sub(proxiesAt) >= duration(balance.WeightInterval) {
				proxiesAt = now
				f.step(ctx, now, ProxiesReported{f.cfg.Proxies.Loads(now)})
			}
			f.step(ctx, now, Tick{})
			f.checkWrite(ctx, now)
			f.nextOrder(ctx)
			f.latest.Store(f.state.Snapshot(now))
		case <-f.replicasChanged:
			f.step(ctx, time.Now(), Replicas{f.configuredReplicas()})
		case r := <-f.written:
			f.handleWritten(ctx, r)
		case <-f.planned:
			f.step(ctx, time.Now(), Planned{})
		case m := <-f.events:
			f.handleMessage(ctx, m, func(now time.Time, ev Event) { f.step(ctx, now, ev) })
		case u, ok := <-f.readableUpdates():
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
	u, err := f.firstUpdate(ctx, updates)
	if err != nil {
		return err
	}
	f.version = u.Version
	f.step(ctx, time.Now(), Stored{u.Object})
	select { // a list that was set before Run is applied below
	case <-f.replicasChanged:
	default:
	}
	f.step(ctx, time.Now(), Replicas{f.configuredReplicas()})
	f.latest.Store(f.state.Snapshot(time.Now()))
	return nil
}

// firstUpdate returns the stored object. It waits for a store that does not answer, which says
// nothing about the object, and returns an error for an object that cannot be read.
func (f *Fleet) firstUpdate(ctx context.Context, updates <-chan store.Update) (store.Update, error) {
	for {
		select {
		case u, ok := <-updates:
			switch {
			case !ok:
				return u, errors.New("fleet: the watch of the plan store ended")
			case errors.Is(u.Err, store.ErrUnavailable):
				f.NoteStore(StoreRead, u.Err)
				continue
			case errors.Is(u.Err, store.ErrFormat):
				return u, fmt.Errorf("fleet: read the stored plan: %w", u.Err)
			case u.Err != nil:
				return u, fmt.Errorf("fleet: read the stored plan: %w; restore it from a backup, or rebuild it with \"cascade plan repair\"", u.Err)
			}
			f.NoteStore(StoreRead, nil)
			return u, nil
		case <-ctx.Done():
			return store.Update{}, ctx.Err()
		}
	}
}

// step steps the state and carries the effects out: it begins to store a proposal, and
// does not wait for that.
func (f *Fleet) step(ctx context.Context, now time.Time, ev Event) {
	e := f.state.Step(now, ev)
	f.logChanges(e)
	f.logHeld()
	if e.Propose != nil && !f.startWrite(ctx, now, e.Propose) {
		e = f.state.Step(now, NotStored{}) // which proposes nothing before its retry is due
		f.logChanges(e)
	}
	if e.Plan != nil {
		go func() {
			e.Plan.Run()
			f.planned <- struct{}{}
		}()
	}
	f.announceSlots()
	if e.Publish != nil {
		f.latest.Store(e.Publish)
		f.cfg.Publisher.Publish(e.Publish)
	}
}

// readableUpdates returns the store's watch; nil while a write waits for its answer. An
// object of another control plane that was applied before that answer would be taken for
// the proposal, or the proposal would replace it although it is newer.
func (f *Fleet) readableUpdates() <-chan store.Update {
	if f.writing != nil && !f.writing.abandoned {
		return nil
	}
	return f.updates
}

// handleUpdate applies an update of the store's watch. The watch may have read a
// version that was written here before the next one was written, and deliver it after
// that: going back to it would make every later write a conflict. The watch delivers
// versions in the order in which they were stored, and merges some, so one of our
// versions also confirms the earlier ones.
func (f *Fleet) handleUpdate(ctx context.Context, u store.Update) {
	f.NoteStore(StoreRead, u.Err)
	if u.Err != nil {
		return
	}
	if i := slices.Index(f.unconfirmed, u.Version); i >= 0 {
		f.unconfirmed = slices.Delete(f.unconfirmed, 0, i+1)
		return
	}
	if u.Version == f.version {
		return
	}
	f.NoteStore(StoreWrite, nil) // another control plane could write
	vanished := u.Version == ""  // the object of f.version
	f.version, f.unconfirmed = u.Version, nil
	if vanished {
		f.log.Error("stored plan has disappeared, storing the one in force again")
		f.step(ctx, time.Now(), Vanished{})
	} else {
		f.step(ctx, time.Now(), Stored{u.Object})
	}
	f.retryOrder()
	f.nextOrder(ctx)
}

// handleQueued handles the messages that wait, before a tick. A replica is late only if no report of it waits here: the
// loop may have been late itself. The tick has the effects of all their reports.
func (f *Fleet) handleQueued(ctx context.Context) {
	for range maxQueued {
		select {
		case m := <-f.events:
			f.handleMessage(ctx, m, f.state.Apply)
		default:
			return
		}
	}
}

// handleMessage applies a report or the end of a report stream, or executes an order, and replies to it.
func (f *Fleet) handleMessage(ctx context.Context, m message, apply func(time.Time, Event)) {
	now := time.Now()
	switch ev := m.event.(type) {
	case Ordered:
		f.addOrder(ctx, ev, m.reply)
	case Reported:
		if err := f.state.CheckReport(ev.Report); err != nil {
			m.reply <- answer{err: status.Error(codes.NotFound, "load report: "+err.Error())}
			return
		}
		id := ev.Report.Replica
		f.mu.Lock()
		f.migrations.Add(now, id, ev.Report.Migrations)
		f.slotReports[id] = policyslots.Report{Node: string(id), At: now, Statuses: ev.Report.Slots}
		f.mu.Unlock()
		ev.Report.Migrations, ev.Report.Slots = nil, nil // the State does not use them
		apply(now, ev)
		reply, _ := f.state.Reply(id)
		m.reply <- answer{reply: reply}
	default:
		apply(now, m.event)
	}
}
